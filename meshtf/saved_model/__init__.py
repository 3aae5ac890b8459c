"""SavedModels, which plain TensorFlow serves."""
