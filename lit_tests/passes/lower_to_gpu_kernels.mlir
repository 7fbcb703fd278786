// RUN: mxc opt %s --split-input-file --passes mxc-choose-gpu-schedule,mxc-lower-to-gpu-kernels | filecheck %s

// Few rows: eight waves share the 16 steps of 512, and add up in shared memory.
// CHECK: workgroup_size = [512, 1, 1] subgroup_size = 64
// CHECK: stream.executable private @mxc_mxfp8e4m3_mxfp4_1x4x32x8192 {
// CHECK: stream.return %c2, %c1, %c1_0 : index, index, index
// CHECK: memref<32768xi8, strided<[1], offset: ?>, #hal.descriptor_type<storage_buffer>>
// CHECK: gpu.thread_id x
// CHECK: rocdl.readfirstlane
// From the workgroup's first row on, and no further than its last one or the last of all.
// CHECK: %[[LEFT:.*]] = arith.subi %c4{{.*}}, %[[START:.*]] : index
// CHECK: %[[ROWS:.*]] = arith.minui %[[LEFT]], %c16
// CHECK: %[[COUNT:.*]] = arith.muli %[[ROWS]], %c8192
// CHECK: %[[AT:.*]] = arith.muli %[[START]], %c8192
// CHECK: %[[LHS:.*]] = memref.subview %{{.*}}[%[[AT]]] [%[[COUNT]]] [1] : memref<32768xi8, strided<[1], offset: ?>, #hal.descriptor_type<storage_buffer>>
// CHECK: amdgpu.fat_raw_buffer_cast %[[LHS]] resetOffset : memref<?xi8, strided<[1], offset: ?>, #hal.descriptor_type<storage_buffer>> to memref<?xi8, #amdgpu.address_space<fat_raw_buffer>>
// The two runs of 16 of an 8-bit element, 32 consecutive ones of a 4-bit one, four scales at once.
// CHECK: vector.load {{.*}} vector<16xi8>
// CHECK: vector.load {{.*}} vector<4xi8>
// CHECK: amdgpu.scaled_mfma 16x16x128 (%{{.*}}[0] * %{{.*}}) * (%{{.*}}[0] * %{{.*}}) + %{{.*}} : vector<4xf8E8M0FNU>, vector<32xf4E2M1FN>, vector<4xf8E8M0FNU>, vector<32xf8E4M3FN>, vector<4xf32>
// CHECK: amdgpu.scaled_mfma 16x16x128 (%{{.*}}[3] * %{{.*}}) * (%{{.*}}[3] * %{{.*}})
// CHECK: memref.alloc() : memref<8x1x64x4xf32, #gpu.address_space<workgroup>>
// CHECK: amdgpu.lds_barrier
// CHECK: vector.store {{.*}} memref<4x32xf32, strided<[32, 1], offset: ?>, #hal.descriptor_type<storage_buffer>>, vector<4xf32>
// CHECK-LABEL: func.func @mixed_pair(
// CHECK-NOT: linalg
// CHECK: flow.dispatch @mxc_mxfp8e4m3_mxfp4_1x4x32x8192::@mxc_mxfp8e4m3_mxfp4_1x4x32x8192(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) {mxc.contraction = {batch = 1 : i64, clocks = {{[0-9]+}} : i64, k = 8192 : i64, kind = "scaled matrix", lhs = {block = 32 : i64, element = f8E4M3FN, scale = f8E8M0FNU}, m = 4 : i64, n = 32 : i64, out = {element = f32}, plan = "{{.*}}", rhs = {block = 32 : i64, element = f4E2M1FN, scale = f8E8M0FNU}, workgroups = 2 : i64}} : (tensor<32768xi8>, tensor<1024xi8>, tensor<131072xi8>, tensor<8192xi8>) -> tensor<4x32xf32>
func.func @mixed_pair(%x: tensor<4x256x32xf8E4M3FN>, %xs: tensor<4x256xf8E8M0FNU>, %w: tensor<32x256x32xf4E2M1FN>, %s: tensor<32x256xf8E8M0FNU>) -> tensor<4x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x32xf32>) -> tensor<4x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<4x256x32xf8E4M3FN>, tensor<32x256x32xf4E2M1FN>, tensor<4x256xf8E8M0FNU>, tensor<32x256xf8E8M0FNU>) outs(%acc : tensor<4x32xf32>) {
  ^bb0(%a: f8E4M3FN, %b: f4E2M1FN, %as: f8E8M0FNU, %c: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %as : f8E4M3FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x32xf32>
  func.return %y : tensor<4x32xf32>
}

// -----

// Experts by ids, in place, and a bias an expert as part of the kernel.
// CHECK: stream.executable private @mxc_mxfp4_mxfp4_3x1x32x64_of_5_then_0 {
// CHECK: stream.return %c2, %c1, %c3 : index, index, index
// CHECK: %[[EXPERT:.*]] = arith.minui
// The base is moved: offsets within all experts may have more than 32 bits.
// CHECK: %[[BASE:.*]] = arith.muli %[[EXPERT]], %c1024
// CHECK: memref.subview %{{.*}}[%[[BASE]]] [1024] [1] : memref<5120xi8
// CHECK: amdgpu.scaled_mfma
// CHECK: vector.load %{{.*}} : memref<5x32xf32, strided<[32, 1], offset: ?>, #hal.descriptor_type<storage_buffer>>, vector<4xf32>
// CHECK: arith.addf %{{.*}} : vector<4xf32>
// CHECK-LABEL: func.func @experts(
// CHECK-NOT: iree_linalg_ext.gather
// CHECK-NOT: linalg.generic
// CHECK: flow.dispatch @mxc_mxfp4_mxfp4_3x1x32x64_of_5_then_0
func.func @experts(%x: tensor<3x1x2x32xf4E2M1FN>, %xs: tensor<3x1x2xf8E8M0FNU>, %w: tensor<5x32x2x32xf4E2M1FN>, %s: tensor<5x32x2xf8E8M0FNU>, %bias: tensor<5x32xf32>, %ids: tensor<3xi32>) -> tensor<3x1x32xf32> {
  %e0 = tensor.empty() : tensor<3x32x2x32xf4E2M1FN>
  %g0 = iree_linalg_ext.gather dimension_map = [0] ins(%w, %ids : tensor<5x32x2x32xf4E2M1FN>, tensor<3xi32>) outs(%e0 : tensor<3x32x2x32xf4E2M1FN>) -> tensor<3x32x2x32xf4E2M1FN>
  %e1 = tensor.empty() : tensor<3x32x2xf8E8M0FNU>
  %g1 = iree_linalg_ext.gather dimension_map = [0] ins(%s, %ids : tensor<5x32x2xf8E8M0FNU>, tensor<3xi32>) outs(%e1 : tensor<3x32x2xf8E8M0FNU>) -> tensor<3x32x2xf8E8M0FNU>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<3x1x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<3x1x32xf32>) -> tensor<3x1x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(e, m, n, k, b) -> (e, m, k, b)>, affine_map<(e, m, n, k, b) -> (e, n, k, b)>, affine_map<(e, m, n, k, b) -> (e, m, k)>, affine_map<(e, m, n, k, b) -> (e, n, k)>, affine_map<(e, m, n, k, b) -> (e, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %g0, %xs, %g1 : tensor<3x1x2x32xf4E2M1FN>, tensor<3x32x2x32xf4E2M1FN>, tensor<3x1x2xf8E8M0FNU>, tensor<3x32x2xf8E8M0FNU>) outs(%acc : tensor<3x1x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f4E2M1FN, %as: f8E8M0FNU, %c: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %as : f4E2M1FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<3x1x32xf32>
  %e = tensor.empty() : tensor<3x1x32xf32>
  %z = linalg.generic {indexing_maps = [affine_map<(p, i, n) -> (p, i, n)>, affine_map<(p, i, n) -> (p)>, affine_map<(p, i, n) -> (p, i, n)>], iterator_types = ["parallel", "parallel", "parallel"]} ins(%y, %ids : tensor<3x1x32xf32>, tensor<3xi32>) outs(%e : tensor<3x1x32xf32>) {
  ^bb0(%t: f32, %id: i32, %o: f32):
    %n = linalg.index 2 : index
    %i = arith.index_cast %id : i32 to index
    %v = tensor.extract %bias[%i, %n] : tensor<5x32xf32>
    %r = arith.addf %t, %v : f32
    linalg.yield %r : f32
  } -> tensor<3x1x32xf32>
  func.return %z : tensor<3x1x32xf32>
}

// -----

// More than a buffer reaches: weights of 2 GiB. A workgroup sees the elements and scales of its own
// columns.
// CHECK: stream.executable private @mxc_f32_mxfp4_1x32x32768x131072 {
// CHECK: %[[W:.*]] = memref.subview {{.*}} memref<?xi8, strided<[1], offset: ?>
// CHECK: amdgpu.fat_raw_buffer_cast %[[W]]
// CHECK: %[[S:.*]] = memref.subview {{.*}} memref<?xi8, strided<[1], offset: ?>
// CHECK: amdgpu.fat_raw_buffer_cast %[[S]]
// CHECK-LABEL: func.func @large_weights(
// CHECK-NOT: linalg
// CHECK: flow.dispatch
func.func @large_weights(%x: tensor<32x4096x32xf32>, %w: tensor<32768x4096x32xf4E2M1FN>, %s: tensor<32768x4096xf8E8M0FNU>) -> tensor<32x32768xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<32x32768xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<32x32768xf32>) -> tensor<32x32768xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<32x4096x32xf32>, tensor<32768x4096x32xf4E2M1FN>, tensor<32768x4096xf8E8M0FNU>) outs(%acc : tensor<32x32768xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<32x32768xf32>
  func.return %y : tensor<32x32768xf32>
}

// -----

// Activations may have as much, here 4 GiB.
// CHECK: stream.executable private @mxc_f32_mxfp4_1x1048576x32x1024 {
// CHECK-LABEL: func.func @many_activations(
// CHECK-NOT: linalg
// CHECK: flow.dispatch
func.func @many_activations(%x: tensor<1048576x32x32xf32>, %w: tensor<32x32x32xf4E2M1FN>, %s: tensor<32x32xf8E8M0FNU>) -> tensor<1048576x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<1048576x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<1048576x32xf32>) -> tensor<1048576x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<1048576x32x32xf32>, tensor<32x32x32xf4E2M1FN>, tensor<32x32xf8E8M0FNU>) outs(%acc : tensor<1048576x32xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<1048576x32xf32>
  func.return %y : tensor<1048576x32xf32>
}

// -----

// Weights in nvfp4: two scales for 32 elements, which no matrix instruction takes.
// CHECK: stream.executable private @mxc_f32_nvfp4_1x4x32x512 {
// CHECK: rocdl.cvt.pk.f32.fp8
// CHECK: rocdl.cvt.scalef32.pk.f32.fp4
// CHECK: amdgpu.mfma
// CHECK-LABEL: func.func @nvfp4(
// CHECK: flow.dispatch @mxc_f32_nvfp4_1x4x32x512
func.func @nvfp4(%x: tensor<4x32x16xf32>, %w: tensor<32x32x16xf4E2M1FN>, %s: tensor<32x32xf8E4M3FN>) -> tensor<4x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x32xf32>) -> tensor<4x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x32x16xf32>, tensor<32x32x16xf4E2M1FN>, tensor<32x32xf8E4M3FN>) outs(%acc : tensor<4x32xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E4M3FN, %o: f32):
    %e = arith.extf %b : f4E2M1FN to f32
    %f = arith.extf %c : f8E4M3FN to f32
    %r = arith.mulf %e, %f : f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x32xf32>
  func.return %y : tensor<4x32xf32>
}

// -----

// Rows that come with the call: the workload, and what the last rows of a workgroup are cut at.
// CHECK: stream.executable.export public @mxc_mxfp4_mxfp4_1xDx32x512_then_0 workgroups(%[[M:.*]]: index) -> (index, index, index)
// CHECK: %[[UP:.*]] = arith.addi %[[M]], %c{{[0-9]+}} : index
// CHECK: arith.divui %[[UP]], %c{{[0-9]+}} : index
// CHECK: func.func @mxc_mxfp4_mxfp4_1xDx32x512_then_0({{.*}}, %[[ROWS:[^:]*]]: index)
// CHECK: %[[BYTES:.*]] = arith.muli %[[ROWS]], %c256
// CHECK: stream.binding.subspan %{{.*}} : !stream.binding -> memref<?xi8, strided<[1], offset: ?>, #hal.descriptor_type<storage_buffer>>{%[[BYTES]]}
// CHECK: arith.cmpi ult, %{{.*}}, %[[ROWS]]
// CHECK: vector.load %{{.*}} : memref<?x32xf32, strided<[32, 1], offset: ?>, #hal.descriptor_type<storage_buffer>>, vector<4xf32>
// CHECK-LABEL: func.func @dynamic_rows(
// CHECK: %[[DIM:.*]] = tensor.dim %arg0, %c0
// CHECK-NOT: linalg
// CHECK: flow.dispatch @mxc_mxfp4_mxfp4_1xDx32x512_then_0::@mxc_mxfp4_mxfp4_1xDx32x512_then_0[%[[DIM]]](%{{.*}}, %[[DIM]]) {mxc.contraction = {batch = 1 : i64, k = 512 : i64, kind = "scaled matrix", lhs = {block = 32 : i64, element = f4E2M1FN, scale = f8E8M0FNU}, m = -1 : i64, n = 32 : i64, out = {element = f32}, plan = "{{.*}}", rhs = {block = 32 : i64, element = f4E2M1FN, scale = f8E8M0FNU}}} : (tensor<?xi8>{%{{.*}}}, {{.*}}, tensor<?x32xf32>{%[[DIM]]}, index) -> tensor<?x32xf32>{%[[DIM]]}
func.func @dynamic_rows(%x: tensor<?x16x32xf4E2M1FN>, %xs: tensor<?x16xf8E8M0FNU>, %w: tensor<32x16x32xf4E2M1FN>, %s: tensor<32x16xf8E8M0FNU>, %more: tensor<?x32xf32>) -> tensor<?x32xf32> {
  %c0 = arith.constant 0 : index
  %m = tensor.dim %x, %c0 : tensor<?x16x32xf4E2M1FN>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty(%m) : tensor<?x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x32xf32>) -> tensor<?x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<?x16x32xf4E2M1FN>, tensor<32x16x32xf4E2M1FN>, tensor<?x16xf8E8M0FNU>, tensor<32x16xf8E8M0FNU>) outs(%acc : tensor<?x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f4E2M1FN, %as: f8E8M0FNU, %c: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %as : f4E2M1FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<?x32xf32>
  %e = tensor.empty(%m) : tensor<?x32xf32>
  %z = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]} ins(%y, %more : tensor<?x32xf32>, tensor<?x32xf32>) outs(%e : tensor<?x32xf32>) {
  ^bb0(%t: f32, %u: f32, %o: f32):
    %r = arith.addf %t, %u : f32
    linalg.yield %r : f32
  } -> tensor<?x32xf32>
  func.return %z : tensor<?x32xf32>
}

// -----

// Both sides in nvfp4: both become bf16, which hold an element times its scale. That is a product of
// f32: no matrix core works beside an instruction for two f16.
// CHECK: stream.executable private @mxc_nvfp4_nvfp4_1x4x32x512 {
// CHECK-COUNT-2: rocdl.cvt.pk.f32.fp8
// CHECK: arith.mulf {{.*}} : vector<2xf32>
// CHECK: amdgpu.mfma 16x16x32 {{.*}} : vector<8xbf16>, vector<8xbf16>, vector<4xf32>
// CHECK-LABEL: func.func @both_nvfp4(
// CHECK: flow.dispatch @mxc_nvfp4_nvfp4_1x4x32x512{{.*}} lhs = {block = 16 : i64, element = f4E2M1FN, scale = f8E4M3FN}
func.func @both_nvfp4(%x: tensor<4x32x16xf4E2M1FN>, %xs: tensor<4x32xf8E4M3FN>, %w: tensor<32x32x16xf4E2M1FN>, %s: tensor<32x32xf8E4M3FN>) -> tensor<4x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x32xf32>) -> tensor<4x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<4x32x16xf4E2M1FN>, tensor<32x32x16xf4E2M1FN>, tensor<4x32xf8E4M3FN>, tensor<32x32xf8E4M3FN>) outs(%acc : tensor<4x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f4E2M1FN, %as: f8E4M3FN, %c: f8E4M3FN, %o: f32):
    %d = arith.extf %a : f4E2M1FN to f32
    %e = arith.extf %as : f8E4M3FN to f32
    %l = arith.mulf %d, %e : f32
    %f = arith.extf %b : f4E2M1FN to f32
    %g = arith.extf %c : f8E4M3FN to f32
    %r = arith.mulf %f, %g : f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x32xf32>
  func.return %y : tensor<4x32xf32>
}

// -----

// A scale for 64 elements is that of two blocks of the instruction: a row of K = 512 has 8.
// CHECK: stream.executable private @mxc_mxfp4x64_mxfp8e4m3x64_1x4x32x512 {
// CHECK: vector.load {{.*}} vector<1xi8>
// CHECK: vector.shuffle %{{.*}}, %{{.*}} [0, 0, 1, 1] : vector<2xi8>, vector<2xi8>
// CHECK: amdgpu.scaled_mfma
// CHECK-LABEL: func.func @larger_blocks(
// CHECK: flow.dispatch @mxc_mxfp4x64_mxfp8e4m3x64_1x4x32x512{{.*}} lhs = {block = 64 : i64, element = f4E2M1FN, scale = f8E8M0FNU}{{.*}} rhs = {block = 64 : i64, element = f8E4M3FN, scale = f8E8M0FNU}
func.func @larger_blocks(%x: tensor<4x8x64xf4E2M1FN>, %xs: tensor<4x8xf8E8M0FNU>, %w: tensor<32x8x64xf8E4M3FN>, %s: tensor<32x8xf8E8M0FNU>) -> tensor<4x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x32xf32>) -> tensor<4x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<4x8x64xf4E2M1FN>, tensor<32x8x64xf8E4M3FN>, tensor<4x8xf8E8M0FNU>, tensor<32x8xf8E8M0FNU>) outs(%acc : tensor<4x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f8E4M3FN, %as: f8E8M0FNU, %c: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %as : f4E2M1FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %b, %c : f8E4M3FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x32xf32>
  func.return %y : tensor<4x32xf32>
}

// -----

// Weights rounded to f16, beside f16: what the conversion to f16 gives. Beside f32, whose parts are
// bf16, there is no kernel.
// CHECK: stream.executable private @mxc_f16_mxfp4_in_f16_1x4x32x512 {
// CHECK: arith.scaling_extf %{{.*}} : vector<8xf4E2M1FN>, vector<8xf8E8M0FNU> to vector<8xf16>
// CHECK: amdgpu.mfma 16x16x32 {{.*}} : vector<8xf16>, vector<8xf16>, vector<4xf32>
// CHECK-LABEL: func.func @rounded_to_f16(
// CHECK: flow.dispatch @mxc_f16_mxfp4_in_f16_1x4x32x512
// CHECK-LABEL: func.func @rounded_beside_f32(
// CHECK: linalg.generic
// CHECK-NOT: flow.dispatch
#x = affine_map<(m, n, k, b) -> (m, k, b)>
#w = affine_map<(m, n, k, b) -> (n, k, b)>
#s = affine_map<(m, n, k, b) -> (n, k)>
#y = affine_map<(m, n, k, b) -> (m, n)>
func.func @rounded_to_f16(%x: tensor<4x16x32xf16>, %w: tensor<32x16x32xf4E2M1FN>, %s: tensor<32x16xf8E8M0FNU>) -> tensor<4x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x32xf32>) -> tensor<4x32xf32>
  %y = linalg.generic {indexing_maps = [#x, #w, #s, #y], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x16x32xf16>, tensor<32x16x32xf4E2M1FN>, tensor<32x16xf8E8M0FNU>) outs(%acc : tensor<4x32xf32>) {
  ^bb0(%a: f16, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %l = arith.extf %a : f16 to f32
    %d = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %e = arith.truncf %d : f32 to f16
    %r = arith.extf %e : f16 to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x32xf32>
  func.return %y : tensor<4x32xf32>
}
func.func @rounded_beside_f32(%x: tensor<4x16x32xf32>, %w: tensor<32x16x32xf4E2M1FN>, %s: tensor<32x16xf8E8M0FNU>) -> tensor<4x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x32xf32>) -> tensor<4x32xf32>
  %y = linalg.generic {indexing_maps = [#x, #w, #s, #y], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x16x32xf32>, tensor<32x16x32xf4E2M1FN>, tensor<32x16xf8E8M0FNU>) outs(%acc : tensor<4x32xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %d = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %e = arith.truncf %d : f32 to f16
    %r = arith.extf %e : f16 to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x32xf32>
  func.return %y : tensor<4x32xf32>
}

// -----

// Blocks of 32 on one side and of 16 on the other.
// CHECK-LABEL: func.func @mixed_blocks(
// CHECK: flow.dispatch @mxc_mxfp8e4m3_nvfp4_1x4x32x512
func.func @mixed_blocks(%x: tensor<4x16x2x16xf8E4M3FN>, %xs: tensor<4x16xf8E8M0FNU>, %w: tensor<32x16x2x16xf4E2M1FN>, %s: tensor<32x16x2xf8E4M3FN>) -> tensor<4x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x32xf32>) -> tensor<4x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, o, i, b) -> (m, o, i, b)>, affine_map<(m, n, o, i, b) -> (n, o, i, b)>, affine_map<(m, n, o, i, b) -> (m, o)>, affine_map<(m, n, o, i, b) -> (n, o, i)>, affine_map<(m, n, o, i, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<4x16x2x16xf8E4M3FN>, tensor<32x16x2x16xf4E2M1FN>, tensor<4x16xf8E8M0FNU>, tensor<32x16x2xf8E4M3FN>) outs(%acc : tensor<4x32xf32>) {
  ^bb0(%a: f8E4M3FN, %b: f4E2M1FN, %as: f8E8M0FNU, %c: f8E4M3FN, %o: f32):
    %l = arith.scaling_extf %a, %as : f8E4M3FN, f8E8M0FNU to f32
    %f = arith.extf %b : f4E2M1FN to f32
    %g = arith.extf %c : f8E4M3FN to f32
    %r = arith.mulf %f, %g : f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x32xf32>
  func.return %y : tensor<4x32xf32>
}

// -----

// A result that is only rounded to bf16 leaves the kernel as bf16, eight bytes a lane.
// CHECK: stream.executable private @mxc_mxfp4_mxfp4_1x32x32x64_then_{{[0-9]+}}_as_bf16 {
// CHECK: arith.truncf %{{.*}} : vector<4xf32> to vector<4xbf16>
// CHECK: vector.store {{.*}} memref<32x32xbf16, {{.*}}>, vector<4xbf16>
// CHECK-LABEL: func.func @rounded(
// CHECK-NOT: linalg
// CHECK: flow.dispatch @mxc_mxfp4_mxfp4_1x32x32x64_then_{{[0-9]+}}_as_bf16::{{.*}}out = {element = bf16}{{.*}} -> tensor<32x32xbf16>
// CHECK-NOT: linalg
// CHECK: return
func.func @rounded(%x: tensor<32x2x32xf4E2M1FN>, %xs: tensor<32x2xf8E8M0FNU>, %w: tensor<32x2x32xf4E2M1FN>, %s: tensor<32x2xf8E8M0FNU>) -> tensor<1024xbf16> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<32x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<32x32xf32>) -> tensor<32x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<32x2x32xf4E2M1FN>, tensor<32x2x32xf4E2M1FN>, tensor<32x2xf8E8M0FNU>, tensor<32x2xf8E8M0FNU>) outs(%acc : tensor<32x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f4E2M1FN, %as: f8E8M0FNU, %c: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %as : f4E2M1FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<32x32xf32>
  %flat = tensor.collapse_shape %y [[0, 1]] : tensor<32x32xf32> into tensor<1024xf32>
  %to = tensor.empty() : tensor<1024xbf16>
  %rounded = linalg.generic {
      indexing_maps = [affine_map<(n) -> (n)>, affine_map<(n) -> (n)>], iterator_types = ["parallel"]}
      ins(%flat : tensor<1024xf32>) outs(%to : tensor<1024xbf16>) {
  ^bb0(%a: f32, %o: bf16):
    %t = arith.truncf %a : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<1024xbf16>
  func.return %rounded : tensor<1024xbf16>
}

// -----

// One product gates another: the first kernel computes the gate, so that this generic is gone when
// its turn comes.
// CHECK-LABEL: func.func @gated(
// CHECK-NOT: linalg
// CHECK: %[[UP:.*]] = flow.dispatch @mxc_mxfp4_mxfp4_1x32x32x64::
// CHECK-NOT: linalg
// CHECK: flow.dispatch @mxc_mxfp4_mxfp4_1x32x32x64_then_0::{{.*}}%[[UP]]
// CHECK-NOT: linalg
// CHECK: return
func.func @gated(%x: tensor<32x2x32xf4E2M1FN>, %xs: tensor<32x2xf8E8M0FNU>, %g: tensor<32x2x32xf4E2M1FN>, %gs: tensor<32x2xf8E8M0FNU>, %u: tensor<32x2x32xf4E2M1FN>, %us: tensor<32x2xf8E8M0FNU>) -> tensor<32x32xf32> {
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %empty = tensor.empty() : tensor<32x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<32x32xf32>) -> tensor<32x32xf32>
  %gate = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %g, %xs, %gs : tensor<32x2x32xf4E2M1FN>, tensor<32x2x32xf4E2M1FN>, tensor<32x2xf8E8M0FNU>, tensor<32x2xf8E8M0FNU>) outs(%acc : tensor<32x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f4E2M1FN, %as: f8E8M0FNU, %c: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %as : f4E2M1FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<32x32xf32>
  %up = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %u, %xs, %us : tensor<32x2x32xf4E2M1FN>, tensor<32x2x32xf4E2M1FN>, tensor<32x2xf8E8M0FNU>, tensor<32x2xf8E8M0FNU>) outs(%acc : tensor<32x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f4E2M1FN, %as: f8E8M0FNU, %c: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %as : f4E2M1FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<32x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%gate, %up : tensor<32x32xf32>, tensor<32x32xf32>) outs(%empty : tensor<32x32xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %n = arith.negf %a : f32
    %e = math.exp %n : f32
    %d = arith.addf %e, %one : f32
    %s = arith.divf %a, %d : f32
    %p = arith.mulf %s, %b : f32
    linalg.yield %p : f32
  } -> tensor<32x32xf32>
  func.return %y : tensor<32x32xf32>
}

// -----

// Groups of four rows: the row of the bias is the number of the row of the result, divided by four.
// CHECK: stream.executable private @mxc_mxfp4_mxfp4_3x4x32x64_of_5_then_0 {
// CHECK: %[[G:.*]] = arith.divui %{{.*}}, %c4{{.*}} : index
// CHECK-NEXT: memref.load %{{.*}}[%[[G]]] : memref<3xi32
// CHECK: vector.load %{{.*}} : memref<5x32xf32, {{.*}}>, vector<4xf32>
// CHECK-LABEL: func.func @groups_of_rows(
// CHECK-NOT: linalg.generic
// CHECK: flow.dispatch @mxc_mxfp4_mxfp4_3x4x32x64_of_5_then_0
func.func @groups_of_rows(%x: tensor<3x4x2x32xf4E2M1FN>, %xs: tensor<3x4x2xf8E8M0FNU>, %w: tensor<5x32x2x32xf4E2M1FN>, %s: tensor<5x32x2xf8E8M0FNU>, %bias: tensor<5x32xf32>, %ids: tensor<3xi32>) -> tensor<3x4x32xf32> {
  %e0 = tensor.empty() : tensor<3x32x2x32xf4E2M1FN>
  %g0 = iree_linalg_ext.gather dimension_map = [0] ins(%w, %ids : tensor<5x32x2x32xf4E2M1FN>, tensor<3xi32>) outs(%e0 : tensor<3x32x2x32xf4E2M1FN>) -> tensor<3x32x2x32xf4E2M1FN>
  %e1 = tensor.empty() : tensor<3x32x2xf8E8M0FNU>
  %g1 = iree_linalg_ext.gather dimension_map = [0] ins(%s, %ids : tensor<5x32x2xf8E8M0FNU>, tensor<3xi32>) outs(%e1 : tensor<3x32x2xf8E8M0FNU>) -> tensor<3x32x2xf8E8M0FNU>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<3x4x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<3x4x32xf32>) -> tensor<3x4x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(e, m, n, k, b) -> (e, m, k, b)>, affine_map<(e, m, n, k, b) -> (e, n, k, b)>, affine_map<(e, m, n, k, b) -> (e, m, k)>, affine_map<(e, m, n, k, b) -> (e, n, k)>, affine_map<(e, m, n, k, b) -> (e, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %g0, %xs, %g1 : tensor<3x4x2x32xf4E2M1FN>, tensor<3x32x2x32xf4E2M1FN>, tensor<3x4x2xf8E8M0FNU>, tensor<3x32x2xf8E8M0FNU>) outs(%acc : tensor<3x4x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f4E2M1FN, %as: f8E8M0FNU, %c: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %as : f4E2M1FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<3x4x32xf32>
  %e = tensor.empty() : tensor<3x4x32xf32>
  %z = linalg.generic {indexing_maps = [affine_map<(p, i, n) -> (p, i, n)>, affine_map<(p, i, n) -> (p)>, affine_map<(p, i, n) -> (p, i, n)>], iterator_types = ["parallel", "parallel", "parallel"]} ins(%y, %ids : tensor<3x4x32xf32>, tensor<3xi32>) outs(%e : tensor<3x4x32xf32>) {
  ^bb0(%t: f32, %id: i32, %o: f32):
    %n = linalg.index 2 : index
    %i = arith.index_cast %id : i32 to index
    %v = tensor.extract %bias[%i, %n] : tensor<5x32xf32>
    %r = arith.addf %t, %v : f32
    linalg.yield %r : f32
  } -> tensor<3x4x32xf32>
  func.return %z : tensor<3x4x32xf32>
}

// -----

// Scales in f32: an instruction multiplies blocks 4 x .. 4 x + 3 of a step, from zero, under scales of one, and its sum
// is multiplied by the scale of the row and those of the four columns.
// CHECK: stream.executable private @mxc_f8E4M3FN_by_f32x128_f8E4M3FN_by_f32x128_1x4x32x256 {
// CHECK-DAG: %[[ZERO:.*]] = arith.constant dense<0.000000e+00> : vector<4xf32>
// CHECK: %[[SUM:.*]] = amdgpu.scaled_mfma 16x16x128 (%{{.*}}[0] * %{{.*}}) * (%{{.*}}[0] * %{{.*}}) + %[[ZERO]]
// CHECK: %[[FACTOR:.*]] = arith.mulf %{{.*}}, %{{.*}} : vector<4xf32>
// CHECK: vector.fma %[[SUM]], %[[FACTOR]], %{{.*}} : vector<4xf32>
// CHECK-LABEL: func.func @float_scales(
// CHECK-NOT: linalg.generic
// CHECK: flow.dispatch @mxc_f8E4M3FN_by_f32x128_f8E4M3FN_by_f32x128_1x4x32x256
func.func @float_scales(%x: tensor<4x2x128xf8E4M3FN>, %xs: tensor<4x2xf32>, %w: tensor<32x2x128xf8E4M3FN>, %s: tensor<32x2xf32>) -> tensor<4x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x32xf32>) -> tensor<4x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<4x2x128xf8E4M3FN>, tensor<32x2x128xf8E4M3FN>, tensor<4x2xf32>, tensor<32x2xf32>) outs(%acc : tensor<4x32xf32>) {
  ^bb0(%a: f8E4M3FN, %b: f8E4M3FN, %as: f32, %c: f32, %o: f32):
    %l0 = arith.extf %a : f8E4M3FN to f32
    %l = arith.mulf %l0, %as : f32
    %r0 = arith.extf %b : f8E4M3FN to f32
    %r = arith.mulf %r0, %c : f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x32xf32>
  func.return %y : tensor<4x32xf32>
}

// -----

// Plain weights, a parameter: no scales. What rounds the activations becomes a part of what computes
// them, and the bias is added to the sums.
// CHECK-LABEL: stream.executable private @mxc_bf16_bf16_1xDx48x544_panels_then_0
// CHECK-COUNT-2: amdgpu.mfma 16x16x32 {{.*}} : vector<8xbf16>, vector<8xbf16>, vector<4xf32>
// CHECK-LABEL: func.func @dense(
// CHECK: arith.truncf
// CHECK-NEXT: linalg.yield
// CHECK-NOT: linalg
// CHECK: flow.dispatch @mxc_bf16_bf16_1xDx48x544_panels_then_0::@mxc_bf16_bf16_1xDx48x544_panels_then_0[%[[ROWS:[a-z0-9_]*]]]({{.*}}, %[[ROWS]]) {mxc.contraction = {batch = 1 : i64, k = 544 : i64, kind = "matrix", lhs = {element = bf16}, m = -1 : i64, n = 48 : i64, out = {element = f32}, plan = "{{.*}}", rhs = {element = bf16}}}
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<48x544xbf16>
func.func @dense(%x: tensor<?x544xf32>, %b: tensor<48xf32>) -> tensor<?x48xf32> {
  %c0 = arith.constant 0 : index
  %m = tensor.dim %x, %c0 : tensor<?x544xf32>
  %w = util.global.load immutable @w : tensor<48x544xbf16>
  %wide = tensor.empty(%m) : tensor<?x544xf32>
  %f = linalg.generic {
      indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m, k)>], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<?x544xf32>) outs(%wide : tensor<?x544xf32>) {
  ^bb0(%a: f32, %o: f32):
    %n = math.sin %a : f32
    linalg.yield %n : f32
  } -> tensor<?x544xf32>
  %e = tensor.empty(%m) : tensor<?x544xbf16>
  %h = linalg.generic {
      indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m, k)>], iterator_types = ["parallel", "parallel"]}
      ins(%f : tensor<?x544xf32>) outs(%e : tensor<?x544xbf16>) {
  ^bb0(%a: f32, %o: bf16):
    %r = arith.truncf %a : f32 to bf16
    linalg.yield %r : bf16
  } -> tensor<?x544xbf16>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty(%m) : tensor<?x48xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x48xf32>) -> tensor<?x48xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%h, %w : tensor<?x544xbf16>, tensor<48x544xbf16>) outs(%acc : tensor<?x48xf32>) {
  ^bb0(%a: bf16, %c: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %c : bf16 to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<?x48xf32>
  %z = linalg.generic {
      indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (n)>, affine_map<(m, n) -> (m, n)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%y, %b : tensor<?x48xf32>, tensor<48xf32>) outs(%empty : tensor<?x48xf32>) {
  ^bb0(%a: f32, %c: f32, %o: f32):
    %s = arith.addf %a, %c : f32
    linalg.yield %s : f32
  } -> tensor<?x48xf32>
  func.return %z : tensor<?x48xf32>
}

// -----

// The sum of two products and a residual: the first kernel computes it, of the second only its product is asked.
// CHECK-LABEL: func.func @sum_of_products(
// CHECK-NOT: linalg.generic
// CHECK: %[[Z:.*]] = flow.dispatch
// CHECK-NOT: linalg.generic
// CHECK: %[[Y:.*]] = flow.dispatch {{.*}}%[[Z]]{{.*}} -> tensor<16x64xf32>
// CHECK-NOT: linalg.generic
// CHECK: return %[[Y]]
util.global private @v = #flow.parameter.named<"model"::"v"> : tensor<64x64xbf16>
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<64x64xbf16>
func.func @sum_of_products(%x: tensor<16x64xbf16>, %u: tensor<16x64xbf16>, %residual: tensor<16x64xf32>) -> tensor<16x64xf32> {
  %v = util.global.load immutable @v : tensor<64x64xbf16>
  %w = util.global.load immutable @w : tensor<64x64xbf16>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<16x64xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%e : tensor<16x64xf32>) -> tensor<16x64xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<16x64xbf16>, tensor<64x64xbf16>) outs(%acc : tensor<16x64xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %c = arith.extf %a : bf16 to f32
    %d = arith.extf %b : bf16 to f32
    %p = arith.mulf %c, %d : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<16x64xf32>
  %z = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%u, %v : tensor<16x64xbf16>, tensor<64x64xbf16>) outs(%acc : tensor<16x64xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %c = arith.extf %a : bf16 to f32
    %d = arith.extf %b : bf16 to f32
    %p = arith.mulf %c, %d : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<16x64xf32>
  %s = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%y, %z : tensor<16x64xf32>, tensor<16x64xf32>) outs(%e : tensor<16x64xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %q = arith.addf %a, %b : f32
    linalg.yield %q : f32
  } -> tensor<16x64xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%residual, %s : tensor<16x64xf32>, tensor<16x64xf32>) outs(%e : tensor<16x64xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %q = arith.addf %a, %b : f32
    linalg.yield %q : f32
  } -> tensor<16x64xf32>
  func.return %r : tensor<16x64xf32>
}

// -----

// Weights of experts, a parameter, are packed: panels of 16 of the 20 rows of each expert, in pieces of 16 bytes. A
// parameter that something else reads, and scales, stay in rows.
// CHECK: stream.executable private @mxc_mxfp4_mxfp4_3x1x20x64_of_5_panels {
// CHECK: memref.subview %{{.*}}[%{{.*}}] [1024] [1] : memref<5120xi8
// CHECK: amdgpu.scaled_mfma
// CHECK: stream.executable private @mxc_bf16_bf16_1x4x64x64 {
// CHECK: util.global private @w {mxc.layout = "panel16x16", mxc.matrices = array<i64: {{.*}}>} = #flow.parameter.named<"model"::"w"> : tensor<5120xi8>
// CHECK: util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<5x20x2xi8>
// CHECK: util.global private @v = #flow.parameter.named<"model"::"v"> : tensor<64x64xbf16>
// CHECK-LABEL: func.func @parameters(
// CHECK-NOT: iree_linalg_ext.gather
// CHECK: %[[W:.*]] = util.global.load immutable @w : tensor<5120xi8>
// CHECK: flow.dispatch @mxc_mxfp4_mxfp4_3x1x20x64_of_5_panels::@mxc_mxfp4_mxfp4_3x1x20x64_of_5_panels(%{{.*}}, %{{.*}}, %{{.*}}, %[[W]], %{{.*}})
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<5x20x2x16xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<5x20x2xi8>
util.global private @v = #flow.parameter.named<"model"::"v"> : tensor<64x64xbf16>
func.func @parameters(%x: tensor<3x1x2x32xf4E2M1FN>, %xs: tensor<3x1x2xf8E8M0FNU>, %ids: tensor<3xi32>, %u: tensor<4x64xbf16>) -> (tensor<3x1x20xf32>, tensor<4x64xf32>, tensor<64x64xbf16>) {
  %w = util.global.load immutable @w : tensor<5x20x2x16xi8>
  %s = util.global.load immutable @s : tensor<5x20x2xi8>
  %v = util.global.load immutable @v : tensor<64x64xbf16>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<3x1x20xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<3x1x20xf32>) -> tensor<3x1x20xf32>
  %we = flow.tensor.bitcast %w : tensor<5x20x2x16xi8> -> tensor<5x20x2x32xf4E2M1FN>
  %se = flow.tensor.bitcast %s : tensor<5x20x2xi8> -> tensor<5x20x2xf8E8M0FNU>
  %e0 = tensor.empty() : tensor<3x20x2x32xf4E2M1FN>
  %g0 = iree_linalg_ext.gather dimension_map = [0] ins(%we, %ids : tensor<5x20x2x32xf4E2M1FN>, tensor<3xi32>) outs(%e0 : tensor<3x20x2x32xf4E2M1FN>) -> tensor<3x20x2x32xf4E2M1FN>
  %e1 = tensor.empty() : tensor<3x20x2xf8E8M0FNU>
  %g1 = iree_linalg_ext.gather dimension_map = [0] ins(%se, %ids : tensor<5x20x2xf8E8M0FNU>, tensor<3xi32>) outs(%e1 : tensor<3x20x2xf8E8M0FNU>) -> tensor<3x20x2xf8E8M0FNU>
  %y = linalg.generic {
      indexing_maps = [affine_map<(e, m, n, k, b) -> (e, m, k, b)>, affine_map<(e, m, n, k, b) -> (e, n, k, b)>, affine_map<(e, m, n, k, b) -> (e, m, k)>, affine_map<(e, m, n, k, b) -> (e, n, k)>, affine_map<(e, m, n, k, b) -> (e, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %g0, %xs, %g1 : tensor<3x1x2x32xf4E2M1FN>, tensor<3x20x2x32xf4E2M1FN>, tensor<3x1x2xf8E8M0FNU>, tensor<3x20x2xf8E8M0FNU>) outs(%acc : tensor<3x1x20xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f4E2M1FN, %as: f8E8M0FNU, %c: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %as : f4E2M1FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<3x1x20xf32>
  %empty2 = tensor.empty() : tensor<4x64xf32>
  %acc2 = linalg.fill ins(%zero : f32) outs(%empty2 : tensor<4x64xf32>) -> tensor<4x64xf32>
  %z = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%u, %v : tensor<4x64xbf16>, tensor<64x64xbf16>) outs(%acc2 : tensor<4x64xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x64xf32>
  func.return %y, %z, %v : tensor<3x1x20xf32>, tensor<4x64xf32>, tensor<64x64xbf16>
}
