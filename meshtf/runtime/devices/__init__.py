"""The hardware of mesh positions: their devices, hosts, threads and matmul kernels."""
