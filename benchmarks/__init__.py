"""Side by side with plain TensorFlow: the same model, the same numbers, and what they
cost.
"""
