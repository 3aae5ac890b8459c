"""SavedModels, which TensorFlow serves without meshtf."""
