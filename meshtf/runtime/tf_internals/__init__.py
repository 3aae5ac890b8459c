"""All private symbols of TensorFlow that meshtf uses stand here, and nowhere else."""
