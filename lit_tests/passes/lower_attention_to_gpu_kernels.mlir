// RUN: mxc opt %s --split-input-file --passes mxc-lower-attention-to-gpu-kernels | filecheck %s

// Sixteen tokens over a window of a size that is known: one dispatch, which reads the cache itself.
// Four waves a head: a wave has two tiles of 16 rows. The result is stored as bf16.
// CHECK: workgroup_size = [64, 1, 1] subgroup_size = 64, {llvm_func_attrs = {"amdgpu-waves-per-eu" = "2"}}
// CHECK: stream.executable private @mxc_attention_16x2x8x64_bf16_of_96_near_8_as_bf16 {
// CHECK: stream.return %c2, %c4, %c1{{.*}} : index, index, index
// An entry of the cache is what offsets reach.
// CHECK: memref.subview %{{.*}}[%{{.*}}, 0, 0, 0] [1, 96, 2, 64] [1, 1, 1, 1]
// CHECK: amdgpu.fat_raw_buffer_cast
// Three bf16 of a query by the keys, along 64 elements of D.
// CHECK: scf.for
// CHECK: amdgpu.mfma 16x16x32 {{.*}} : vector<8xbf16>, vector<8xbf16>, vector<4xf32>
// CHECK: rocdl.permlane16.swap
// CHECK: rocdl.permlane32.swap
// CHECK: rocdl.exp2
// CHECK: amdgpu.mfma 16x16x32
// With care, where something was infinite or NaN: f32 all through.
// CHECK: rocdl.ballot
// CHECK: amdgpu.mfma 16x16x4 {{.*}} : f32, f32, vector<4xf32>
// CHECK: rocdl.ds_bpermute
// CHECK-LABEL: func.func @prefill(
// CHECK-NOT: linalg
// CHECK-NOT: tensor.extract_slice
// CHECK: flow.dispatch @mxc_attention_16x2x8x64_bf16_of_96_near_8_as_bf16::@mxc_attention_16x2x8x64_bf16_of_96_near_8_as_bf16(%arg0, %arg1, %arg1, %arg2, %arg3, %arg4, %c23{{.*}}, %c23{{.*}}, %c2, %c3) {mxc.reads = array<i64: -1, 5888, 5888>} : (tensor<16x2x8x64xf32>, tensor<4x96x2x64xbf16>, tensor<4x96x2x64xbf16>, tensor<2x8xbf16>, index, index, index, index, index, index) -> tensor<16x2x8x64xbf16>
// CHECK-NOT: linalg
// CHECK: return
#map = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d4)>
#map1 = affine_map<(d0, d1, d2, d3, d4) -> (d3, d1, d4)>
#map2 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3)>
#map3 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map4 = affine_map<(d0, d1, d2) -> (d1, d2)>
#map5 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map6 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map8 = affine_map<(d0, d1) -> (d0, d1)>
#map7 = affine_map<(d0, d1, d2, d3, d4) -> (d4, d1, d3)>
func.func @prefill(%arg0: tensor<16x2x8x64xf32>, %arg1: tensor<4x96x2x64xbf16>, %arg2: tensor<2x8xbf16>, %arg3: index, %arg4: index) -> tensor<16x1024xbf16> {
  %extracted_slice = tensor.extract_slice %arg1[2, %arg4, 0, 0] [1, 23, 2, 64] [1, 1, 1, 1] : tensor<4x96x2x64xbf16> to tensor<23x2x64xbf16>
  %extracted_slice_0 = tensor.extract_slice %arg1[3, %arg4, 0, 0] [1, 23, 2, 64] [1, 1, 1, 1] : tensor<4x96x2x64xbf16> to tensor<23x2x64xbf16>
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<16x2x8x23xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<16x2x8x23xf32>) -> tensor<16x2x8x23xf32>
  %2 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%arg0, %extracted_slice : tensor<16x2x8x64xf32>, tensor<23x2x64xbf16>) outs(%1 : tensor<16x2x8x23xf32>) {
  ^bb0(%in: f32, %in_2: bf16, %out: f32):
    %18 = arith.extf %in_2 : bf16 to f32
    %19 = arith.mulf %in, %18 : f32
    %20 = arith.addf %out, %19 : f32
    linalg.yield %20 : f32
  } -> tensor<16x2x8x23xf32>
  %3 = tensor.empty() : tensor<16x2x8x23xf32>
  %4 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%2 : tensor<16x2x8x23xf32>) outs(%3 : tensor<16x2x8x23xf32>) {
  ^bb0(%in: f32, %out: f32):
    %18 = linalg.index 0 : index
    %19 = arith.addi %arg3, %18 : index
    %20 = linalg.index 3 : index
    %21 = arith.addi %arg4, %20 : index
    %22 = arith.cmpi sle, %21, %19 : index
    %23 = arith.subi %19, %21 : index
    %c8 = arith.constant 8 : index
    %24 = arith.cmpi slt, %23, %c8 : index
    %25 = arith.andi %22, %24 : i1
    %cst_2 = arith.constant 1.250000e-01 : f32
    %26 = arith.mulf %in, %cst_2 : f32
    %cst_3 = arith.constant -3.000000e+38 : f32
    %27 = arith.select %25, %26, %cst_3 : f32
    linalg.yield %27 : f32
  } -> tensor<16x2x8x23xf32>
  %5 = tensor.empty() : tensor<16x2x8xf32>
  %6 = linalg.generic {indexing_maps = [#map4, #map5], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg2 : tensor<2x8xbf16>) outs(%5 : tensor<16x2x8xf32>) {
  ^bb0(%in: bf16, %out: f32):
    %18 = arith.extf %in : bf16 to f32
    linalg.yield %18 : f32
  } -> tensor<16x2x8xf32>
  %7 = linalg.generic {indexing_maps = [#map3, #map6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%4 : tensor<16x2x8x23xf32>) outs(%6 : tensor<16x2x8xf32>) {
  ^bb0(%in: f32, %out: f32):
    %18 = arith.maximumf %in, %out : f32
    linalg.yield %18 : f32
  } -> tensor<16x2x8xf32>
  %8 = tensor.empty() : tensor<16x2x8x23xf32>
  %9 = linalg.generic {indexing_maps = [#map3, #map6, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%4, %7 : tensor<16x2x8x23xf32>, tensor<16x2x8xf32>) outs(%8 : tensor<16x2x8x23xf32>) {
  ^bb0(%in: f32, %in_2: f32, %out: f32):
    %18 = arith.subf %in, %in_2 : f32
    %19 = math.exp %18 : f32
    linalg.yield %19 : f32
  } -> tensor<16x2x8x23xf32>
  %10 = tensor.empty() : tensor<16x2x8xf32>
  %11 = linalg.generic {indexing_maps = [#map4, #map5, #map5], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg2, %7 : tensor<2x8xbf16>, tensor<16x2x8xf32>) outs(%10 : tensor<16x2x8xf32>) {
  ^bb0(%in: bf16, %in_2: f32, %out: f32):
    %18 = arith.extf %in : bf16 to f32
    %19 = arith.subf %18, %in_2 : f32
    %20 = math.exp %19 : f32
    linalg.yield %20 : f32
  } -> tensor<16x2x8xf32>
  %12 = linalg.generic {indexing_maps = [#map3, #map6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%9 : tensor<16x2x8x23xf32>) outs(%11 : tensor<16x2x8xf32>) {
  ^bb0(%in: f32, %out: f32):
    %18 = arith.addf %in, %out : f32
    linalg.yield %18 : f32
  } -> tensor<16x2x8xf32>
  %cst_1 = arith.constant 0.000000e+00 : f32
  %13 = tensor.empty() : tensor<16x2x8x64xf32>
  %14 = linalg.fill ins(%cst_1 : f32) outs(%13 : tensor<16x2x8x64xf32>) -> tensor<16x2x8x64xf32>
  %15 = linalg.generic {indexing_maps = [#map, #map7, #map2], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%9, %extracted_slice_0 : tensor<16x2x8x23xf32>, tensor<23x2x64xbf16>) outs(%14 : tensor<16x2x8x64xf32>) {
  ^bb0(%in: f32, %in_2: bf16, %out: f32):
    %cst_3 = arith.constant 0.000000e+00 : f32
    %18 = arith.cmpf oeq, %in, %cst_3 : f32
    %19 = arith.extf %in_2 : bf16 to f32
    %20 = arith.mulf %in, %19 : f32
    %21 = arith.select %18, %cst_3, %20 : f32
    %22 = arith.addf %out, %21 : f32
    linalg.yield %22 : f32
  } -> tensor<16x2x8x64xf32>
  %16 = tensor.empty() : tensor<16x2x8x64xf32>
  %17 = linalg.generic {indexing_maps = [#map3, #map6, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%15, %12 : tensor<16x2x8x64xf32>, tensor<16x2x8xf32>) outs(%16 : tensor<16x2x8x64xf32>) {
  ^bb0(%in: f32, %in_2: f32, %out: f32):
    %18 = arith.divf %in, %in_2 : f32
    linalg.yield %18 : f32
  } -> tensor<16x2x8x64xf32>
  %collapsed = tensor.collapse_shape %17 [[0], [1, 2, 3]] : tensor<16x2x8x64xf32> into tensor<16x1024xf32>
  %18 = tensor.empty() : tensor<16x1024xbf16>
  %19 = linalg.generic {indexing_maps = [#map8, #map8], iterator_types = ["parallel", "parallel"]} ins(%collapsed : tensor<16x1024xf32>) outs(%18 : tensor<16x1024xbf16>) {
  ^bb0(%in: f32, %out: bf16):
    %20 = arith.truncf %in : f32 to bf16
    linalg.yield %20 : bf16
  } -> tensor<16x1024xbf16>
  return %19 : tensor<16x1024xbf16>
}

// -----

// One token over as many keys as there are: they are shared out in pieces, at most as many as keys
// can make, and put together. Behind the 64 elements of a row are its maximum and its total.
// CHECK: stream.executable private @mxc_attention_1x2x8x64_bf16_of_1024 {
// CHECK: stream.executable.export public @{{.*}} workgroups(%[[N:.*]]: index)
// CHECK: stream.return %c2, %c1{{.*}}, %[[N]]
// CHECK: stream.executable private @mxc_attention_1x2x8x64_bf16_of_1024_joined {
// CHECK-LABEL: func.func @decode(
// CHECK: %[[KEYS:.*]] = arith.maxsi
// CHECK: %[[PIECES:.*]] = arith.ceildivsi %arg4, %[[KEYS]] : index
// CHECK: %[[PARTS:.*]] = flow.dispatch @mxc_attention_1x2x8x64_bf16_of_1024::@{{.*}}[%[[PIECES]]](%arg0, %arg1, %arg1, %arg2, %arg3, %c0{{.*}}, %arg4, %[[KEYS]], %c2{{.*}}, %c3{{.*}}) {mxc.reads = array<i64: -1, 262144, 262144>} : {{.*}} -> tensor<8x2x8x68xf32>
// CHECK: %[[Y:.*]] = flow.dispatch @mxc_attention_1x2x8x64_bf16_of_1024_joined::@{{.*}}(%[[PARTS]], %arg2, %[[PIECES]]) : (tensor<8x2x8x68xf32>, tensor<2x8xbf16>, index) -> tensor<1x2x8x64xf32>
// CHECK: return %[[Y]]
#map = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d4)>
#map1 = affine_map<(d0, d1, d2, d3, d4) -> (d3, d1, d4)>
#map2 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3)>
#map3 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map4 = affine_map<(d0, d1, d2) -> (d1, d2)>
#map5 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map6 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map7 = affine_map<(d0, d1, d2, d3, d4) -> (d4, d1, d3)>
func.func @decode(%arg0: tensor<1x2x8x64xf32>, %arg1: tensor<4x1024x2x64xbf16>, %arg2: tensor<2x8xbf16>, %arg3: index, %arg4: index) -> tensor<1x2x8x64xf32> {
  %extracted_slice = tensor.extract_slice %arg1[2, 0, 0, 0] [1, %arg4, 2, 64] [1, 1, 1, 1] : tensor<4x1024x2x64xbf16> to tensor<?x2x64xbf16>
  %extracted_slice_0 = tensor.extract_slice %arg1[3, 0, 0, 0] [1, %arg4, 2, 64] [1, 1, 1, 1] : tensor<4x1024x2x64xbf16> to tensor<?x2x64xbf16>
  %c0 = arith.constant 0 : index
  %dim = tensor.dim %extracted_slice, %c0 : tensor<?x2x64xbf16>
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty(%dim) : tensor<1x2x8x?xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<1x2x8x?xf32>) -> tensor<1x2x8x?xf32>
  %2 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%arg0, %extracted_slice : tensor<1x2x8x64xf32>, tensor<?x2x64xbf16>) outs(%1 : tensor<1x2x8x?xf32>) {
  ^bb0(%in: f32, %in_11: bf16, %out: f32):
    %18 = arith.extf %in_11 : bf16 to f32
    %19 = arith.mulf %in, %18 : f32
    %20 = arith.addf %out, %19 : f32
    linalg.yield %20 : f32
  } -> tensor<1x2x8x?xf32>
  %c3 = arith.constant 3 : index
  %dim_1 = tensor.dim %2, %c3 : tensor<1x2x8x?xf32>
  %3 = tensor.empty(%dim_1) : tensor<1x2x8x?xf32>
  %4 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%2 : tensor<1x2x8x?xf32>) outs(%3 : tensor<1x2x8x?xf32>) {
  ^bb0(%in: f32, %out: f32):
    %18 = linalg.index 0 : index
    %19 = arith.addi %arg3, %18 : index
    %20 = linalg.index 3 : index
    %21 = arith.cmpi sle, %20, %19 : index
    %cst_11 = arith.constant 1.250000e-01 : f32
    %22 = arith.mulf %in, %cst_11 : f32
    %cst_12 = arith.constant -3.000000e+38 : f32
    %23 = arith.select %21, %22, %cst_12 : f32
    linalg.yield %23 : f32
  } -> tensor<1x2x8x?xf32>
  %5 = tensor.empty() : tensor<1x2x8xf32>
  %6 = linalg.generic {indexing_maps = [#map4, #map5], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg2 : tensor<2x8xbf16>) outs(%5 : tensor<1x2x8xf32>) {
  ^bb0(%in: bf16, %out: f32):
    %18 = arith.extf %in : bf16 to f32
    linalg.yield %18 : f32
  } -> tensor<1x2x8xf32>
  %c3_2 = arith.constant 3 : index
  %dim_3 = tensor.dim %4, %c3_2 : tensor<1x2x8x?xf32>
  %7 = linalg.generic {indexing_maps = [#map3, #map6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%4 : tensor<1x2x8x?xf32>) outs(%6 : tensor<1x2x8xf32>) {
  ^bb0(%in: f32, %out: f32):
    %18 = arith.maximumf %in, %out : f32
    linalg.yield %18 : f32
  } -> tensor<1x2x8xf32>
  %c3_4 = arith.constant 3 : index
  %dim_5 = tensor.dim %4, %c3_4 : tensor<1x2x8x?xf32>
  %8 = tensor.empty(%dim_5) : tensor<1x2x8x?xf32>
  %9 = linalg.generic {indexing_maps = [#map3, #map6, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%4, %7 : tensor<1x2x8x?xf32>, tensor<1x2x8xf32>) outs(%8 : tensor<1x2x8x?xf32>) {
  ^bb0(%in: f32, %in_11: f32, %out: f32):
    %18 = arith.subf %in, %in_11 : f32
    %19 = math.exp %18 : f32
    linalg.yield %19 : f32
  } -> tensor<1x2x8x?xf32>
  %10 = tensor.empty() : tensor<1x2x8xf32>
  %11 = linalg.generic {indexing_maps = [#map4, #map5, #map5], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg2, %7 : tensor<2x8xbf16>, tensor<1x2x8xf32>) outs(%10 : tensor<1x2x8xf32>) {
  ^bb0(%in: bf16, %in_11: f32, %out: f32):
    %18 = arith.extf %in : bf16 to f32
    %19 = arith.subf %18, %in_11 : f32
    %20 = math.exp %19 : f32
    linalg.yield %20 : f32
  } -> tensor<1x2x8xf32>
  %c3_6 = arith.constant 3 : index
  %dim_7 = tensor.dim %9, %c3_6 : tensor<1x2x8x?xf32>
  %12 = linalg.generic {indexing_maps = [#map3, #map6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%9 : tensor<1x2x8x?xf32>) outs(%11 : tensor<1x2x8xf32>) {
  ^bb0(%in: f32, %out: f32):
    %18 = arith.addf %in, %out : f32
    linalg.yield %18 : f32
  } -> tensor<1x2x8xf32>
  %c3_8 = arith.constant 3 : index
  %dim_9 = tensor.dim %9, %c3_8 : tensor<1x2x8x?xf32>
  %cst_10 = arith.constant 0.000000e+00 : f32
  %13 = tensor.empty() : tensor<1x2x8x64xf32>
  %14 = linalg.fill ins(%cst_10 : f32) outs(%13 : tensor<1x2x8x64xf32>) -> tensor<1x2x8x64xf32>
  %15 = linalg.generic {indexing_maps = [#map, #map7, #map2], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%9, %extracted_slice_0 : tensor<1x2x8x?xf32>, tensor<?x2x64xbf16>) outs(%14 : tensor<1x2x8x64xf32>) {
  ^bb0(%in: f32, %in_11: bf16, %out: f32):
    %cst_12 = arith.constant 0.000000e+00 : f32
    %18 = arith.cmpf oeq, %in, %cst_12 : f32
    %19 = arith.extf %in_11 : bf16 to f32
    %20 = arith.mulf %in, %19 : f32
    %21 = arith.select %18, %cst_12, %20 : f32
    %22 = arith.addf %out, %21 : f32
    linalg.yield %22 : f32
  } -> tensor<1x2x8x64xf32>
  %16 = tensor.empty() : tensor<1x2x8x64xf32>
  %17 = linalg.generic {indexing_maps = [#map3, #map6, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%15, %12 : tensor<1x2x8x64xf32>, tensor<1x2x8xf32>) outs(%16 : tensor<1x2x8x64xf32>) {
  ^bb0(%in: f32, %in_11: f32, %out: f32):
    %18 = arith.divf %in, %in_11 : f32
    linalg.yield %18 : f32
  } -> tensor<1x2x8x64xf32>
  return %17 : tensor<1x2x8x64xf32>
}

// -----

// Keys and values of the caller.
// CHECK-LABEL: func.func @no_cache(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic
#map = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d4)>
#map1 = affine_map<(d0, d1, d2, d3, d4) -> (d3, d1, d4)>
#map2 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3)>
#map3 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map4 = affine_map<(d0, d1, d2) -> (d1, d2)>
#map5 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map6 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map7 = affine_map<(d0, d1, d2, d3, d4) -> (d4, d1, d3)>
func.func @no_cache(%arg0: tensor<2x2x8x64xf32>, %arg1: tensor<16x2x64xbf16>, %arg2: tensor<2x8xbf16>, %arg3: index) -> tensor<2x2x8x64xf32> {
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<2x2x8x16xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<2x2x8x16xf32>) -> tensor<2x2x8x16xf32>
  %2 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<2x2x8x64xf32>, tensor<16x2x64xbf16>) outs(%1 : tensor<2x2x8x16xf32>) {
  ^bb0(%in: f32, %in_1: bf16, %out: f32):
    %18 = arith.extf %in_1 : bf16 to f32
    %19 = arith.mulf %in, %18 : f32
    %20 = arith.addf %out, %19 : f32
    linalg.yield %20 : f32
  } -> tensor<2x2x8x16xf32>
  %3 = tensor.empty() : tensor<2x2x8x16xf32>
  %4 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%2 : tensor<2x2x8x16xf32>) outs(%3 : tensor<2x2x8x16xf32>) {
  ^bb0(%in: f32, %out: f32):
    %18 = linalg.index 0 : index
    %19 = arith.addi %arg3, %18 : index
    %20 = linalg.index 3 : index
    %21 = arith.cmpi sle, %20, %19 : index
    %cst_1 = arith.constant 1.250000e-01 : f32
    %22 = arith.mulf %in, %cst_1 : f32
    %cst_2 = arith.constant -3.000000e+38 : f32
    %23 = arith.select %21, %22, %cst_2 : f32
    linalg.yield %23 : f32
  } -> tensor<2x2x8x16xf32>
  %5 = tensor.empty() : tensor<2x2x8xf32>
  %6 = linalg.generic {indexing_maps = [#map4, #map5], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg2 : tensor<2x8xbf16>) outs(%5 : tensor<2x2x8xf32>) {
  ^bb0(%in: bf16, %out: f32):
    %18 = arith.extf %in : bf16 to f32
    linalg.yield %18 : f32
  } -> tensor<2x2x8xf32>
  %7 = linalg.generic {indexing_maps = [#map3, #map6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%4 : tensor<2x2x8x16xf32>) outs(%6 : tensor<2x2x8xf32>) {
  ^bb0(%in: f32, %out: f32):
    %18 = arith.maximumf %in, %out : f32
    linalg.yield %18 : f32
  } -> tensor<2x2x8xf32>
  %8 = tensor.empty() : tensor<2x2x8x16xf32>
  %9 = linalg.generic {indexing_maps = [#map3, #map6, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%4, %7 : tensor<2x2x8x16xf32>, tensor<2x2x8xf32>) outs(%8 : tensor<2x2x8x16xf32>) {
  ^bb0(%in: f32, %in_1: f32, %out: f32):
    %18 = arith.subf %in, %in_1 : f32
    %19 = math.exp %18 : f32
    linalg.yield %19 : f32
  } -> tensor<2x2x8x16xf32>
  %10 = tensor.empty() : tensor<2x2x8xf32>
  %11 = linalg.generic {indexing_maps = [#map4, #map5, #map5], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg2, %7 : tensor<2x8xbf16>, tensor<2x2x8xf32>) outs(%10 : tensor<2x2x8xf32>) {
  ^bb0(%in: bf16, %in_1: f32, %out: f32):
    %18 = arith.extf %in : bf16 to f32
    %19 = arith.subf %18, %in_1 : f32
    %20 = math.exp %19 : f32
    linalg.yield %20 : f32
  } -> tensor<2x2x8xf32>
  %12 = linalg.generic {indexing_maps = [#map3, #map6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%9 : tensor<2x2x8x16xf32>) outs(%11 : tensor<2x2x8xf32>) {
  ^bb0(%in: f32, %out: f32):
    %18 = arith.addf %in, %out : f32
    linalg.yield %18 : f32
  } -> tensor<2x2x8xf32>
  %cst_0 = arith.constant 0.000000e+00 : f32
  %13 = tensor.empty() : tensor<2x2x8x64xf32>
  %14 = linalg.fill ins(%cst_0 : f32) outs(%13 : tensor<2x2x8x64xf32>) -> tensor<2x2x8x64xf32>
  %15 = linalg.generic {indexing_maps = [#map, #map7, #map2], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%9, %arg1 : tensor<2x2x8x16xf32>, tensor<16x2x64xbf16>) outs(%14 : tensor<2x2x8x64xf32>) {
  ^bb0(%in: f32, %in_1: bf16, %out: f32):
    %cst_2 = arith.constant 0.000000e+00 : f32
    %18 = arith.cmpf oeq, %in, %cst_2 : f32
    %19 = arith.extf %in_1 : bf16 to f32
    %20 = arith.mulf %in, %19 : f32
    %21 = arith.select %18, %cst_2, %20 : f32
    %22 = arith.addf %out, %21 : f32
    linalg.yield %22 : f32
  } -> tensor<2x2x8x64xf32>
  %16 = tensor.empty() : tensor<2x2x8x64xf32>
  %17 = linalg.generic {indexing_maps = [#map3, #map6, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%15, %12 : tensor<2x2x8x64xf32>, tensor<2x2x8xf32>) outs(%16 : tensor<2x2x8x64xf32>) {
  ^bb0(%in: f32, %in_1: f32, %out: f32):
    %18 = arith.divf %in, %in_1 : f32
    linalg.yield %18 : f32
  } -> tensor<2x2x8x64xf32>
  return %17 : tensor<2x2x8x64xf32>
}

// -----

// Heads of 48: no whole fragments.
// CHECK-LABEL: func.func @odd(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic
#map = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d4)>
#map1 = affine_map<(d0, d1, d2, d3, d4) -> (d3, d1, d4)>
#map2 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3)>
#map3 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map4 = affine_map<(d0, d1, d2) -> (d1, d2)>
#map5 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map6 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map7 = affine_map<(d0, d1, d2, d3, d4) -> (d4, d1, d3)>
func.func @odd(%arg0: tensor<2x1x4x48xf32>, %arg1: tensor<4x64x1x48xbf16>, %arg2: tensor<1x4xbf16>, %arg3: index) -> tensor<2x1x4x48xf32> {
  %extracted_slice = tensor.extract_slice %arg1[2, 0, 0, 0] [1, 16, 1, 48] [1, 1, 1, 1] : tensor<4x64x1x48xbf16> to tensor<16x1x48xbf16>
  %extracted_slice_0 = tensor.extract_slice %arg1[3, 0, 0, 0] [1, 16, 1, 48] [1, 1, 1, 1] : tensor<4x64x1x48xbf16> to tensor<16x1x48xbf16>
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<2x1x4x16xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<2x1x4x16xf32>) -> tensor<2x1x4x16xf32>
  %2 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%arg0, %extracted_slice : tensor<2x1x4x48xf32>, tensor<16x1x48xbf16>) outs(%1 : tensor<2x1x4x16xf32>) {
  ^bb0(%in: f32, %in_2: bf16, %out: f32):
    %18 = arith.extf %in_2 : bf16 to f32
    %19 = arith.mulf %in, %18 : f32
    %20 = arith.addf %out, %19 : f32
    linalg.yield %20 : f32
  } -> tensor<2x1x4x16xf32>
  %3 = tensor.empty() : tensor<2x1x4x16xf32>
  %4 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%2 : tensor<2x1x4x16xf32>) outs(%3 : tensor<2x1x4x16xf32>) {
  ^bb0(%in: f32, %out: f32):
    %18 = linalg.index 0 : index
    %19 = arith.addi %arg3, %18 : index
    %20 = linalg.index 3 : index
    %21 = arith.cmpi sle, %20, %19 : index
    %cst_2 = arith.constant 6.250000e-02 : f32
    %22 = arith.mulf %in, %cst_2 : f32
    %cst_3 = arith.constant -3.000000e+38 : f32
    %23 = arith.select %21, %22, %cst_3 : f32
    linalg.yield %23 : f32
  } -> tensor<2x1x4x16xf32>
  %5 = tensor.empty() : tensor<2x1x4xf32>
  %6 = linalg.generic {indexing_maps = [#map4, #map5], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg2 : tensor<1x4xbf16>) outs(%5 : tensor<2x1x4xf32>) {
  ^bb0(%in: bf16, %out: f32):
    %18 = arith.extf %in : bf16 to f32
    linalg.yield %18 : f32
  } -> tensor<2x1x4xf32>
  %7 = linalg.generic {indexing_maps = [#map3, #map6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%4 : tensor<2x1x4x16xf32>) outs(%6 : tensor<2x1x4xf32>) {
  ^bb0(%in: f32, %out: f32):
    %18 = arith.maximumf %in, %out : f32
    linalg.yield %18 : f32
  } -> tensor<2x1x4xf32>
  %8 = tensor.empty() : tensor<2x1x4x16xf32>
  %9 = linalg.generic {indexing_maps = [#map3, #map6, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%4, %7 : tensor<2x1x4x16xf32>, tensor<2x1x4xf32>) outs(%8 : tensor<2x1x4x16xf32>) {
  ^bb0(%in: f32, %in_2: f32, %out: f32):
    %18 = arith.subf %in, %in_2 : f32
    %19 = math.exp %18 : f32
    linalg.yield %19 : f32
  } -> tensor<2x1x4x16xf32>
  %10 = tensor.empty() : tensor<2x1x4xf32>
  %11 = linalg.generic {indexing_maps = [#map4, #map5, #map5], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg2, %7 : tensor<1x4xbf16>, tensor<2x1x4xf32>) outs(%10 : tensor<2x1x4xf32>) {
  ^bb0(%in: bf16, %in_2: f32, %out: f32):
    %18 = arith.extf %in : bf16 to f32
    %19 = arith.subf %18, %in_2 : f32
    %20 = math.exp %19 : f32
    linalg.yield %20 : f32
  } -> tensor<2x1x4xf32>
  %12 = linalg.generic {indexing_maps = [#map3, #map6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%9 : tensor<2x1x4x16xf32>) outs(%11 : tensor<2x1x4xf32>) {
  ^bb0(%in: f32, %out: f32):
    %18 = arith.addf %in, %out : f32
    linalg.yield %18 : f32
  } -> tensor<2x1x4xf32>
  %cst_1 = arith.constant 0.000000e+00 : f32
  %13 = tensor.empty() : tensor<2x1x4x48xf32>
  %14 = linalg.fill ins(%cst_1 : f32) outs(%13 : tensor<2x1x4x48xf32>) -> tensor<2x1x4x48xf32>
  %15 = linalg.generic {indexing_maps = [#map, #map7, #map2], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%9, %extracted_slice_0 : tensor<2x1x4x16xf32>, tensor<16x1x48xbf16>) outs(%14 : tensor<2x1x4x48xf32>) {
  ^bb0(%in: f32, %in_2: bf16, %out: f32):
    %cst_3 = arith.constant 0.000000e+00 : f32
    %18 = arith.cmpf oeq, %in, %cst_3 : f32
    %19 = arith.extf %in_2 : bf16 to f32
    %20 = arith.mulf %in, %19 : f32
    %21 = arith.select %18, %cst_3, %20 : f32
    %22 = arith.addf %out, %21 : f32
    linalg.yield %22 : f32
  } -> tensor<2x1x4x48xf32>
  %16 = tensor.empty() : tensor<2x1x4x48xf32>
  %17 = linalg.generic {indexing_maps = [#map3, #map6, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%15, %12 : tensor<2x1x4x48xf32>, tensor<2x1x4xf32>) outs(%16 : tensor<2x1x4x48xf32>) {
  ^bb0(%in: f32, %in_2: f32, %out: f32):
    %18 = arith.divf %in, %in_2 : f32
    linalg.yield %18 : f32
  } -> tensor<2x1x4x48xf32>
  return %17 : tensor<2x1x4x48xf32>
}
