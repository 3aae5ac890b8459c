"""Settings of a Keras model by the paths of its layers: layouts, and what is recomputed."""
