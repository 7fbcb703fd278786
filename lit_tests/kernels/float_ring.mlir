// RUN: mxc opt %s --target gfx950 --to kernels | filecheck %s

// Many rows of bf16: they pass through LDS as they are, weights as they are packed.
// CHECK: #translation = #iree_codegen.translation_info<pipeline = #iree_codegen.no_pipeline workgroup_size = [256, 1, 1] subgroup_size = 64, {llvm_func_attrs = {"amdgpu-agpr-alloc" = "64", "amdgpu-waves-per-eu" = "1, 1"}}>
// CHECK: stream.executable private @mxc_bf16_mxfp4_1x4096x4096x4096 {
// CHECK: memref.alloc() : memref<81920xi8, #gpu.address_space<workgroup>>

// Three stages are asked for, and of the fourth what the first k-step does not ask for.
// CHECK-COUNT-3: rocdl.asyncmark
// CHECK: rocdl.wait.asyncmark 2
// CHECK: rocdl.s.barrier

// A pair of weights is decoded behind a product, each for all rows of the wave.
// CHECK: scf.for
// CHECK: amdgpu.mfma 32x32x16 {{.*}} : vector<8xbf16>, vector<8xbf16>, vector<16xf32>
// CHECK: rocdl.cvt.scalef32.pk.bf16.fp4
// CHECK: rocdl.sched.barrier

// What is decoded for the next part is there before it begins.
// CHECK: llvm.inline_asm has_side_effects

// After half of this stage the next one is there, and all waves have read this one: its slot is
// filled again.
// CHECK: rocdl.wait.asyncmark 2
// CHECK: rocdl.s.barrier
// CHECK: amdgpu.gather_to_lds async
// CHECK: scf.yield
// CHECK: rocdl.wait.asyncmark 0
// CHECK: vector.store %{{.*}} : memref<4096x4096xf32{{.*}}>, vector<4xf32>
func.func @main(%a: tensor<4096x128x32xbf16>, %b8: tensor<4096x128x16xi8>, %q8: tensor<4096x128xi8>) -> tensor<4096x4096xf32> {
  %b = flow.tensor.bitcast %b8 : tensor<4096x128x16xi8> -> tensor<4096x128x32xf4E2M1FN>
  %q = flow.tensor.bitcast %q8 : tensor<4096x128xi8> -> tensor<4096x128xf8E8M0FNU>
  %e = tensor.empty() : tensor<4096x4096xf32>
  %z = arith.constant 0.0 : f32
  %c = linalg.fill ins(%z : f32) outs(%e : tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, o, b) -> (m, o, b)>, affine_map<(m, n, o, b) -> (n, o, b)>, affine_map<(m, n, o, b) -> (n, o)>, affine_map<(m, n, o, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%a, %b, %q : tensor<4096x128x32xbf16>, tensor<4096x128x32xf4E2M1FN>, tensor<4096x128xf8E8M0FNU>) outs(%c : tensor<4096x4096xf32>) {
  ^bb0(%x: bf16, %y: f4E2M1FN, %t: f8E8M0FNU, %o: f32):
    %0 = arith.extf %x : bf16 to f32
    %1 = arith.scaling_extf %y, %t : f4E2M1FN, f8E8M0FNU to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %o, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<4096x4096xf32>
  func.return %r : tensor<4096x4096xf32>
}
