"""What needs torch: the model, its weights, attention, sampling, and the runner over them.

Only functions import from here, so that nothing loads torch before an engine is asked for.
"""
