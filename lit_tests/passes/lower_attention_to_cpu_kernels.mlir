// RUN: mxc opt %s --split-input-file --passes mxc-lower-attention-to-cpu-kernels | filecheck %s
// RUN: mxc opt %s --split-input-file --passes 'mxc-lower-attention-to-cpu-kernels{lanes=8}' | filecheck %s --check-prefix=EIGHT

// Sixteen tokens over a window of a size that is known: one dispatch, which reads the cache itself.
// CHECK: stream.executable private @mxc_attention_16x2x8x64_bf16_of_96_near_8 {
// CHECK: stream.return %c2, %c1, %c1{{.*}} : index, index, index
// CHECK-NOT: llvm.call_intrinsic
// CHECK: memref<4x96x2x64xbf16>
// CHECK: math.fma {{.*}} : vector<16xf32>
// CHECK-LABEL: func.func @prefill(
// CHECK-NOT: linalg
// CHECK-NOT: tensor.extract_slice
// CHECK: flow.dispatch @mxc_attention_16x2x8x64_bf16_of_96_near_8::@mxc_attention_16x2x8x64_bf16_of_96_near_8(%arg0, %arg1, %arg1, %arg2, %arg3, %arg4, %c23{{.*}}, %c23{{.*}}, %c2, %c3) {mxc.reads = array<i64: -1, 5888, 5888>} : (tensor<16x2x8x64xf32>, tensor<4x96x2x64xbf16>, tensor<4x96x2x64xbf16>, tensor<2x8xbf16>, index, index, index, index, index, index) -> tensor<16x2x8x64xf32>
// CHECK-NOT: linalg
// CHECK: return
// EIGHT: math.fma {{.*}} : vector<8xf32>
// EIGHT-LABEL: func.func @prefill(
// EIGHT: flow.dispatch @mxc_attention_16x2x8x64_bf16_of_96_near_8
#map = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d4)>
#map1 = affine_map<(d0, d1, d2, d3, d4) -> (d3, d1, d4)>
#map2 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3)>
#map3 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map4 = affine_map<(d0, d1, d2) -> (d1, d2)>
#map5 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map6 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map7 = affine_map<(d0, d1, d2, d3, d4) -> (d4, d1, d3)>
func.func @prefill(%arg0: tensor<16x2x8x64xf32>, %arg1: tensor<4x96x2x64xbf16>, %arg2: tensor<2x8xbf16>, %arg3: index, %arg4: index) -> tensor<16x2x8x64xf32> {
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
  return %17 : tensor<16x2x8x64xf32>
}

// -----

// One token over as many keys as there are: they are shared out in pieces, at most as many as keys
// can make, and put together.
// CHECK: stream.executable private @mxc_attention_1x2x8x64_bf16_of_1024 {
// CHECK: stream.executable.export public @{{.*}} workgroups(%[[N:.*]]: index)
// CHECK: stream.return %c1, %c1{{.*}}, %[[N]]
// CHECK: stream.executable private @mxc_attention_1x2x8x64_bf16_of_1024_joined {
// CHECK-LABEL: func.func @decode(
// CHECK: %[[KEYS:.*]] = arith.maxsi
// CHECK: %[[PIECES:.*]] = arith.ceildivsi %arg4, %[[KEYS]] : index
// CHECK: %[[PARTS:.*]] = flow.dispatch @mxc_attention_1x2x8x64_bf16_of_1024::@{{.*}}[%[[PIECES]]](%arg0, %arg1, %arg1, %arg2, %arg3, %c0{{.*}}, %arg4, %[[KEYS]], %c2{{.*}}, %c3{{.*}}) {mxc.reads = array<i64: -1, 262144, 262144>} : {{.*}} -> tensor<8x2x8x80xf32>
// CHECK: %[[Y:.*]] = flow.dispatch @mxc_attention_1x2x8x64_bf16_of_1024_joined::@{{.*}}(%[[PARTS]], %arg2, %[[PIECES]]) : (tensor<8x2x8x80xf32>, tensor<2x8xbf16>, index) -> tensor<1x2x8x64xf32>
// CHECK: return %[[Y]]
// EIGHT-LABEL: func.func @decode(
// EIGHT: flow.dispatch {{.*}} -> tensor<8x2x8x72xf32>
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

// Keys that come after a query: not what is meant by attention here. Both products say so.
// CHECK-LABEL: func.func @anticausal(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic {{.*}}mxc.contraction = {reason = "the scores are more than products times a number, seen by later positions or in a window of them"}
// CHECK: linalg.generic {{.*}}mxc.contraction = {reason = "the scores are more than products
// EIGHT-LABEL: func.func @anticausal(
// EIGHT-NOT: flow.dispatch
#map = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d4)>
#map1 = affine_map<(d0, d1, d2, d3, d4) -> (d3, d1, d4)>
#map2 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3)>
#map3 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map4 = affine_map<(d0, d1, d2) -> (d1, d2)>
#map5 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map6 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map7 = affine_map<(d0, d1, d2, d3, d4) -> (d4, d1, d3)>
func.func @anticausal(%arg0: tensor<2x2x8x64xf32>, %arg1: tensor<4x128x2x64xbf16>, %arg2: tensor<2x8xbf16>, %arg3: index) -> tensor<2x2x8x64xf32> {
  %extracted_slice = tensor.extract_slice %arg1[2, 0, 0, 0] [1, 16, 2, 64] [1, 1, 1, 1] : tensor<4x128x2x64xbf16> to tensor<16x2x64xbf16>
  %extracted_slice_0 = tensor.extract_slice %arg1[3, 0, 0, 0] [1, 16, 2, 64] [1, 1, 1, 1] : tensor<4x128x2x64xbf16> to tensor<16x2x64xbf16>
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<2x2x8x16xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<2x2x8x16xf32>) -> tensor<2x2x8x16xf32>
  %2 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%arg0, %extracted_slice : tensor<2x2x8x64xf32>, tensor<16x2x64xbf16>) outs(%1 : tensor<2x2x8x16xf32>) {
  ^bb0(%in: f32, %in_2: bf16, %out: f32):
    %18 = arith.extf %in_2 : bf16 to f32
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
    %21 = arith.cmpi sge, %20, %19 : index
    %cst_2 = arith.constant 1.250000e-01 : f32
    %22 = arith.mulf %in, %cst_2 : f32
    %cst_3 = arith.constant -3.000000e+38 : f32
    %23 = arith.select %21, %22, %cst_3 : f32
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
  ^bb0(%in: f32, %in_2: f32, %out: f32):
    %18 = arith.subf %in, %in_2 : f32
    %19 = math.exp %18 : f32
    linalg.yield %19 : f32
  } -> tensor<2x2x8x16xf32>
  %10 = tensor.empty() : tensor<2x2x8xf32>
  %11 = linalg.generic {indexing_maps = [#map4, #map5, #map5], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg2, %7 : tensor<2x8xbf16>, tensor<2x2x8xf32>) outs(%10 : tensor<2x2x8xf32>) {
  ^bb0(%in: bf16, %in_2: f32, %out: f32):
    %18 = arith.extf %in : bf16 to f32
    %19 = arith.subf %18, %in_2 : f32
    %20 = math.exp %19 : f32
    linalg.yield %20 : f32
  } -> tensor<2x2x8xf32>
  %12 = linalg.generic {indexing_maps = [#map3, #map6], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%9 : tensor<2x2x8x16xf32>) outs(%11 : tensor<2x2x8xf32>) {
  ^bb0(%in: f32, %out: f32):
    %18 = arith.addf %in, %out : f32
    linalg.yield %18 : f32
  } -> tensor<2x2x8xf32>
  %cst_1 = arith.constant 0.000000e+00 : f32
  %13 = tensor.empty() : tensor<2x2x8x64xf32>
  %14 = linalg.fill ins(%cst_1 : f32) outs(%13 : tensor<2x2x8x64xf32>) -> tensor<2x2x8x64xf32>
  %15 = linalg.generic {indexing_maps = [#map, #map7, #map2], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%9, %extracted_slice_0 : tensor<2x2x8x16xf32>, tensor<16x2x64xbf16>) outs(%14 : tensor<2x2x8x64xf32>) {
  ^bb0(%in: f32, %in_2: bf16, %out: f32):
    %cst_3 = arith.constant 0.000000e+00 : f32
    %18 = arith.cmpf oeq, %in, %cst_3 : f32
    %19 = arith.extf %in_2 : bf16 to f32
    %20 = arith.mulf %in, %19 : f32
    %21 = arith.select %18, %cst_3, %20 : f32
    %22 = arith.addf %out, %21 : f32
    linalg.yield %22 : f32
  } -> tensor<2x2x8x64xf32>
  %16 = tensor.empty() : tensor<2x2x8x64xf32>
  %17 = linalg.generic {indexing_maps = [#map3, #map6, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%15, %12 : tensor<2x2x8x64xf32>, tensor<2x2x8xf32>) outs(%16 : tensor<2x2x8x64xf32>) {
  ^bb0(%in: f32, %in_2: f32, %out: f32):
    %18 = arith.divf %in, %in_2 : f32
    linalg.yield %18 : f32
  } -> tensor<2x2x8x64xf32>
  return %17 : tensor<2x2x8x64xf32>
}

// -----

// Keys and values of the caller.
// CHECK-LABEL: func.func @no_cache(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic
// EIGHT-LABEL: func.func @no_cache(
// EIGHT-NOT: flow.dispatch
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

// Heads of 256: eight lanes have room for a block of their keys, sixteen have not, and so eight are
// taken of registers of sixteen too.
// CHECK: math.fma {{.*}} : vector<8xf32>
// CHECK-NOT: vector<16xf32>
// CHECK-LABEL: func.func @wide(
// CHECK-NOT: linalg
// CHECK: flow.dispatch
// EIGHT-LABEL: func.func @wide(
// EIGHT-NOT: linalg
// EIGHT: flow.dispatch
#map = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d4)>
#map1 = affine_map<(d0, d1, d2, d3, d4) -> (d3, d1, d4)>
#map2 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3)>
#map3 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map4 = affine_map<(d0, d1, d2) -> (d1, d2)>
#map5 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map6 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map7 = affine_map<(d0, d1, d2, d3, d4) -> (d4, d1, d3)>
func.func @wide(%arg0: tensor<2x1x4x256xf32>, %arg1: tensor<4x64x1x256xbf16>, %arg2: tensor<1x4xbf16>, %arg3: index) -> tensor<2x1x4x256xf32> {
  %extracted_slice = tensor.extract_slice %arg1[2, 0, 0, 0] [1, 16, 1, 256] [1, 1, 1, 1] : tensor<4x64x1x256xbf16> to tensor<16x1x256xbf16>
  %extracted_slice_0 = tensor.extract_slice %arg1[3, 0, 0, 0] [1, 16, 1, 256] [1, 1, 1, 1] : tensor<4x64x1x256xbf16> to tensor<16x1x256xbf16>
  %cst = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<2x1x4x16xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<2x1x4x16xf32>) -> tensor<2x1x4x16xf32>
  %2 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%arg0, %extracted_slice : tensor<2x1x4x256xf32>, tensor<16x1x256xbf16>) outs(%1 : tensor<2x1x4x16xf32>) {
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
  %13 = tensor.empty() : tensor<2x1x4x256xf32>
  %14 = linalg.fill ins(%cst_1 : f32) outs(%13 : tensor<2x1x4x256xf32>) -> tensor<2x1x4x256xf32>
  %15 = linalg.generic {indexing_maps = [#map, #map7, #map2], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%9, %extracted_slice_0 : tensor<2x1x4x16xf32>, tensor<16x1x256xbf16>) outs(%14 : tensor<2x1x4x256xf32>) {
  ^bb0(%in: f32, %in_2: bf16, %out: f32):
    %cst_3 = arith.constant 0.000000e+00 : f32
    %18 = arith.cmpf oeq, %in, %cst_3 : f32
    %19 = arith.extf %in_2 : bf16 to f32
    %20 = arith.mulf %in, %19 : f32
    %21 = arith.select %18, %cst_3, %20 : f32
    %22 = arith.addf %out, %21 : f32
    linalg.yield %22 : f32
  } -> tensor<2x1x4x256xf32>
  %16 = tensor.empty() : tensor<2x1x4x256xf32>
  %17 = linalg.generic {indexing_maps = [#map3, #map6, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%15, %12 : tensor<2x1x4x256xf32>, tensor<2x1x4xf32>) outs(%16 : tensor<2x1x4x256xf32>) {
  ^bb0(%in: f32, %in_2: f32, %out: f32):
    %18 = arith.divf %in, %in_2 : f32
    linalg.yield %18 : f32
  } -> tensor<2x1x4x256xf32>
  return %17 : tensor<2x1x4x256xf32>
}
