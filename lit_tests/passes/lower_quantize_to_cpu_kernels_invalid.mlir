// RUN: not mxc opt %s --passes mxc-lower-quantize-to-cpu-kernels{isa=avx1024} 2>&1 | filecheck %s

// CHECK: mxc-lower-quantize-to-cpu-kernels: unknown isa 'avx1024'; known: amx-bf16, avx512-bf16,
func.func @nothing() {
  return
}
