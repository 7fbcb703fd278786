// RUN: mxc opt %s --target gfx950 --to kernels | filecheck %s

// Many rows: rhs passes through LDS, in a ring of four stages; of lhs each wave has its own rows.
// CHECK: #translation = #iree_codegen.translation_info<pipeline = #iree_codegen.no_pipeline workgroup_size = [256, 1, 1] subgroup_size = 64, {llvm_func_attrs = {"amdgpu-agpr-alloc" = "256", "amdgpu-waves-per-eu" = "1, 1"}}>
// CHECK: stream.executable private @mxc_mxfp4_mxfp4_1x4096x4096x4096 {
// CHECK: memref.alloc() : memref<69760xi8, #gpu.address_space<workgroup>>

// Three stages are asked for, and of the fourth what the first stage does not ask for; of lhs as
// much, straight to registers.
// CHECK: vector.load %{{.*}} : memref<{{.*}}, #amdgpu.address_space<fat_raw_buffer>>, vector<16xi8>
// CHECK: amdgpu.gather_to_lds async %{{.*}} : vector<16xi8>, memref<8388608xi8, #amdgpu.address_space<fat_raw_buffer>>, memref<69760xi8, #gpu.address_space<workgroup>>
// CHECK-COUNT-3: rocdl.asyncmark
// CHECK: rocdl.wait.asyncmark 2
// CHECK: rocdl.s.barrier

// Rhs has been read from LDS, and its rows are those of the instruction. The last two of four
// scales of lhs are taken, the first two of rhs: so they lie in memory, and nothing moves them.
// CHECK: scf.for
// CHECK-NOT: vector.shuffle
// CHECK: amdgpu.scaled_mfma 32x32x64 (%{{.*}}[0] * %{{.*}}) * (%{{.*}}[2] * %{{.*}}) + %{{.*}} : vector<4xf8E8M0FNU>, vector<32xf4E2M1FN>, vector<4xf8E8M0FNU>, vector<32xf4E2M1FN>, vector<16xf32>
// CHECK-NOT: vector.shuffle
// CHECK: vector.load %{{.*}} : memref<{{.*}}, #amdgpu.address_space<fat_raw_buffer>>, vector<8xi8>
// CHECK-NOT: vector.shuffle
// CHECK: vector.load %{{.*}} alignment = 16 : memref<69760xi8, #gpu.address_space<workgroup>>, vector<16xi8>
// CHECK-NOT: vector.shuffle
// CHECK: rocdl.sched.group.barrier mfma_wmma, {{.*}}, 0
// CHECK-NOT: vector.shuffle

// The next stage is there, and all waves have read this one: its slot is filled again.
// CHECK: rocdl.wait.asyncmark 2
// CHECK: rocdl.s.barrier
// CHECK-NOT: vector.shuffle
// CHECK: amdgpu.gather_to_lds async
// CHECK-NOT: vector.shuffle
// CHECK: vector.store %{{.*}} alignment = 2 : memref<69760xi8, #gpu.address_space<workgroup>>, vector<2xi8>
// CHECK-NOT: vector.shuffle
// CHECK: scf.yield

// Four columns of a row at once; nothing is cut off at the ends.
// CHECK-NOT: scf.if
// CHECK: vector.store %{{.*}} : memref<4096x4096xf32{{.*}}>, vector<4xf32>
func.func @main(%a8: tensor<4096x128x16xi8>, %b8: tensor<4096x128x16xi8>, %p8: tensor<4096x128xi8>, %q8: tensor<4096x128xi8>) -> tensor<4096x4096xf32> {
  %a = flow.tensor.bitcast %a8 : tensor<4096x128x16xi8> -> tensor<4096x128x32xf4E2M1FN>
  %b = flow.tensor.bitcast %b8 : tensor<4096x128x16xi8> -> tensor<4096x128x32xf4E2M1FN>
  %p = flow.tensor.bitcast %p8 : tensor<4096x128xi8> -> tensor<4096x128xf8E8M0FNU>
  %q = flow.tensor.bitcast %q8 : tensor<4096x128xi8> -> tensor<4096x128xf8E8M0FNU>
  %e = tensor.empty() : tensor<4096x4096xf32>
  %z = arith.constant 0.0 : f32
  %c = linalg.fill ins(%z : f32) outs(%e : tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, o, b) -> (m, o, b)>, affine_map<(m, n, o, b) -> (n, o, b)>, affine_map<(m, n, o, b) -> (m, o)>, affine_map<(m, n, o, b) -> (n, o)>, affine_map<(m, n, o, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%a, %b, %p, %q : tensor<4096x128x32xf4E2M1FN>, tensor<4096x128x32xf4E2M1FN>, tensor<4096x128xf8E8M0FNU>, tensor<4096x128xf8E8M0FNU>) outs(%c : tensor<4096x4096xf32>) {
  ^bb0(%x: f4E2M1FN, %y: f4E2M1FN, %s: f8E8M0FNU, %t: f8E8M0FNU, %o: f32):
    %0 = arith.scaling_extf %x, %s : f4E2M1FN, f8E8M0FNU to f32
    %1 = arith.scaling_extf %y, %t : f4E2M1FN, f8E8M0FNU to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %o, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<4096x4096xf32>
  func.return %r : tensor<4096x4096xf32>
}
