"""A decision tree from symptom to command: ``holdfast diagnose --guided``, and its page in docs."""
