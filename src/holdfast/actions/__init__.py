"""What the facts, rules and reports are used for: what to do at the start, at each tick and at a failure.

Here stand the watcher, the agent that answers the launcher's hooks, the policy (verdict and history in, decision out)
and, later, alerts and archives. An action decides and does; it judges nothing itself and never imports torch.
"""
