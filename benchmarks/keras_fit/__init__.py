"""Steps of Keras' own fit, on one device and on a mesh."""
