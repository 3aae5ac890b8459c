"""TensorFlow's tapes and decorated functions in the trace of a step."""
