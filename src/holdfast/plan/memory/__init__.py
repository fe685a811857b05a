"""Memory model: parameters, gradients, optimizer states, activations and temporary peaks."""
