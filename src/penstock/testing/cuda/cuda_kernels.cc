// Compiles the device's kernels for the host's threads.
#include "penstock/kernels/cuda/attention.cu"
#include "penstock/kernels/cuda/gemm.cu"
#include "penstock/kernels/cuda/peak.cu"
#include "penstock/kernels/cuda/routing.cu"
#include "penstock/kernels/cuda/rows.cu"
