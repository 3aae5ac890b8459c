"""The program that drives all devices, written node by node as one FunctionDef
(TensorFlow's protocol buffer of a function), and the functions that it calls.
"""
