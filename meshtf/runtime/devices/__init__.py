"""Mesh positions to hardware: devices, hosts, threads, kernels."""
