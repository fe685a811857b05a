"""The evaluation guard, on real ranks over gloo where several are the matter."""
