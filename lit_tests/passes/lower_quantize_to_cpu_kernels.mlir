// RUN: mxc opt %s --split-input-file --passes mxc-lower-quantize-to-cpu-kernels{isa=avx512} | filecheck %s
// RUN: mxc opt %s --split-input-file --passes mxc-lower-quantize-to-cpu-kernels{isa=neon} | filecheck %s --check-prefix=NEON
// RUN: mxc opt %s --split-input-file --passes mxc-lower-quantize-to-cpu-kernels{isa=avx512} --print-kernels | filecheck %s --check-prefix=NESTS

// NESTS: // @mxc_quantize_f32_mxfp4_even_192: emitted directly, not in the kernel language (docs/kernels.md)

// As many blocks at a time as a register has lanes: their largest magnitudes are one register. The
// recipe: half of the last place that E2M1 keeps. Then each by a sum, and its bytes; else in integers.
// CHECK: stream.executable private @mxc_quantize_f32_mxfp4_even_192 {
// CHECK: memref<6x32xf32>
// CHECK: vector.shuffle {{.*}} : vector<16xi32>, vector<16xi32>
// CHECK: arith.constant dense<2097152> : vector<16xi32>
// CHECK: vector.reduction <and>, %{{.*}} : vector<16xi1> into i1
// CHECK: scf.if
// CHECK: vector.store %{{.*}}, %{{.*}} : memref<6xi8>, vector<16xi8>
// CHECK: scf.for
// CHECK: arith.addf %{{.*}}, %{{.*}} : vector<16xf32>
// CHECK: vector.store %{{.*}} : memref<6x16xi8>, vector<16xi8>
// CHECK: scf.for
// CHECK: arith.sitofp
// CHECK-LABEL: func.func @floats(
// CHECK-NOT: linalg
// CHECK: %[[ALL:.*]]:2 = flow.dispatch @mxc_quantize_f32_mxfp4_even_192::@mxc_quantize_f32_mxfp4_even_192(%{{.*}}) {mxc.quantizes = {{.*}}} : (tensor<6x32xf32>) -> (tensor<6x16xi8>, tensor<6xi8>)
// CHECK-NOT: linalg
// CHECK: return %{{.*}}, %{{.*}} : tensor<3x2x32xf4E2M1FN>, tensor<3x2xf8E8M0FNU>
// NEON: vector.shuffle {{.*}} : vector<4xi32>, vector<4xi32>
// NEON: vector.reduction <and>, %{{.*}} : vector<4xi1> into i1
#map = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d1)>
#map2 = affine_map<(d0, d1) -> (d0, d1)>
func.func @floats(%arg0: tensor<3x64xf32>) -> (tensor<3x2x32xf4E2M1FN>, tensor<3x2xf8E8M0FNU>) {
  %c8_i32 = arith.constant 8 : i32
  %c28_i32 = arith.constant 28 : i32
  %c7_i32 = arith.constant 7 : i32
  %c1065353216_i32 = arith.constant 1065353216 : i32
  %c252_i32 = arith.constant 252 : i32
  %c2097151_i32 = arith.constant 2097151 : i32
  %c1_i32 = arith.constant 1 : i32
  %c22_i32 = arith.constant 22 : i32
  %cst = arith.constant 0x4A800000 : f32
  %c127_i32 = arith.constant 127 : i32
  %c8388608_i32 = arith.constant 8388608 : i32
  %c-192937984_i32 = arith.constant -192937984 : i32
  %c1249902592_i32 = arith.constant 1249902592 : i32
  %c255_i32 = arith.constant 255 : i32
  %c2139095040_i32 = arith.constant 2139095040 : i32
  %c254_i32 = arith.constant 254 : i32
  %c2_i32 = arith.constant 2 : i32
  %c23_i32 = arith.constant 23 : i32
  %c2097152_i32 = arith.constant 2097152 : i32
  %c2147483647_i32 = arith.constant 2147483647 : i32
  %c0_i32 = arith.constant 0 : i32
  %expanded = tensor.expand_shape %arg0 [[0], [1, 2]] output_shape [3, 2, 32] : tensor<3x64xf32> into tensor<3x2x32xf32>
  %0 = tensor.empty() : tensor<3x2xi32>
  %1 = linalg.fill ins(%c0_i32 : i32) outs(%0 : tensor<3x2xi32>) -> tensor<3x2xi32>
  %2 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%expanded : tensor<3x2x32xf32>) outs(%1 : tensor<3x2xi32>) {
  ^bb0(%in: f32, %out: i32):
    %9 = arith.bitcast %in : f32 to i32
    %10 = arith.andi %9, %c2147483647_i32 : i32
    %11 = arith.maxsi %10, %out : i32
    linalg.yield %11 : i32
  } -> tensor<3x2xi32>
  %3 = tensor.empty() : tensor<3x2xi8>
  %4 = linalg.generic {indexing_maps = [#map2, #map2], iterator_types = ["parallel", "parallel"]} ins(%2 : tensor<3x2xi32>) outs(%3 : tensor<3x2xi8>) {
  ^bb0(%in: i32, %out: i8):
    %9 = arith.addi %in, %c2097152_i32 : i32
    %10 = arith.shrsi %9, %c23_i32 : i32
    %11 = arith.subi %10, %c2_i32 : i32
    %12 = arith.maxsi %11, %c0_i32 : i32
    %13 = arith.minsi %12, %c254_i32 : i32
    %14 = arith.cmpi sgt, %in, %c2139095040_i32 : i32
    %15 = arith.select %14, %c255_i32, %13 : i32
    %16 = arith.trunci %15 : i32 to i8
    linalg.yield %16 : i8
  } -> tensor<3x2xi8>
  %5 = tensor.empty() : tensor<3x2x32xi4>
  %6 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%expanded, %4 : tensor<3x2x32xf32>, tensor<3x2xi8>) outs(%5 : tensor<3x2x32xi4>) {
  ^bb0(%in: f32, %in_0: i8, %out: i4):
    %9 = arith.bitcast %in : f32 to i32
    %10 = arith.extui %in_0 : i8 to i32
    %11 = arith.andi %9, %c2147483647_i32 : i32
    %12 = arith.sitofp %11 : i32 to f32
    %13 = arith.bitcast %12 : f32 to i32
    %14 = arith.subi %13, %c1249902592_i32 : i32
    %15 = arith.maxsi %14, %c-192937984_i32 : i32
    %16 = arith.cmpi slt, %11, %c8388608_i32 : i32
    %17 = arith.select %16, %15, %11 : i32
    %18 = arith.subi %c127_i32, %10 : i32
    %19 = arith.shli %18, %c23_i32 : i32
    %20 = arith.addi %17, %19 : i32
    %21 = arith.maxsi %20, %c0_i32 : i32
    %22 = arith.cmpi slt, %11, %c2139095040_i32 : i32
    %23 = arith.select %22, %21, %c2139095040_i32 : i32
    %24 = arith.bitcast %23 : i32 to f32
    %25 = arith.addf %24, %cst : f32
    %26 = arith.bitcast %25 : f32 to i32
    %27 = arith.subi %26, %c1249902592_i32 : i32
    %28 = arith.shrui %23, %c22_i32 : i32
    %29 = arith.andi %28, %c1_i32 : i32
    %30 = arith.addi %23, %c2097151_i32 : i32
    %31 = arith.addi %30, %29 : i32
    %32 = arith.shrui %31, %c22_i32 : i32
    %33 = arith.subi %32, %c252_i32 : i32
    %34 = arith.cmpi slt, %23, %c1065353216_i32 : i32
    %35 = arith.select %34, %27, %33 : i32
    %36 = arith.minsi %35, %c7_i32 : i32
    %37 = arith.shrui %9, %c28_i32 : i32
    %38 = arith.andi %37, %c8_i32 : i32
    %39 = arith.ori %36, %38 : i32
    %40 = arith.cmpi slt, %10, %c255_i32 : i32
    %41 = arith.select %40, %39, %c0_i32 : i32
    %42 = arith.trunci %41 : i32 to i4
    linalg.yield %42 : i4
  } -> tensor<3x2x32xi4>
  %7 = flow.tensor.bitcast %6 : tensor<3x2x32xi4> -> tensor<3x2x32xf4E2M1FN>
  %8 = flow.tensor.bitcast %4 : tensor<3x2xi8> -> tensor<3x2xf8E8M0FNU>
  return %7, %8 : tensor<3x2x32xf4E2M1FN>, tensor<3x2xf8E8M0FNU>
}

// -----

// The number of blocks comes with the call, and with it the number of workgroups.
// CHECK: stream.executable private @mxc_quantize_bf16_mxint8_rceil_D {
// CHECK: stream.executable.export public @mxc_quantize_bf16_mxint8_rceil_D workgroups(%[[COUNT:.*]]: index)
// CHECK: arith.divui
// CHECK: memref<?x32xbf16>
// CHECK-LABEL: func.func @any_rows(
// CHECK-NOT: linalg
// CHECK: %[[ROWS:.*]] = tensor.dim %arg0
// CHECK: %[[BLOCKS:.*]] = arith.muli %{{.*}}, %[[ROWS]]
// CHECK: flow.dispatch @mxc_quantize_bf16_mxint8_rceil_D::@mxc_quantize_bf16_mxint8_rceil_D[%[[BLOCKS]]](%{{.*}}, %[[BLOCKS]]) {mxc.quantizes = {{.*}}} : (tensor<?x32xbf16>{%[[BLOCKS]]}, index) -> (tensor<?x32xi8>{%[[BLOCKS]]}, tensor<?xi8>{%[[BLOCKS]]})
// CHECK-NOT: linalg
#map = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map1 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map2 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
func.func @any_rows(%arg0: tensor<?x3x64xbf16>) -> (tensor<?x3x2x32xi8>, tensor<?x3x2xf8E8M0FNU>) {
  %c1207959552_i32 = arith.constant 1207959552 : i32
  %cst = arith.constant 1.310720e+05 : f32
  %c127_i32 = arith.constant 127 : i32
  %c-192937984_i32 = arith.constant -192937984 : i32
  %c1249902592_i32 = arith.constant 1249902592 : i32
  %c255_i32 = arith.constant 255 : i32
  %c2139095040_i32 = arith.constant 2139095040 : i32
  %c254_i32 = arith.constant 254 : i32
  %c23_i32 = arith.constant 23 : i32
  %c131071_i32 = arith.constant 131071 : i32
  %c8388608_i32 = arith.constant 8388608 : i32
  %c2147483647_i32 = arith.constant 2147483647 : i32
  %c0_i32 = arith.constant 0 : i32
  %c0 = arith.constant 0 : index
  %dim = tensor.dim %arg0, %c0 : tensor<?x3x64xbf16>
  %0 = tensor.empty(%dim) : tensor<?x3x64xf32>
  %1 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg0 : tensor<?x3x64xbf16>) outs(%0 : tensor<?x3x64xf32>) {
  ^bb0(%in: bf16, %out: f32):
    %10 = arith.extf %in : bf16 to f32
    linalg.yield %10 : f32
  } -> tensor<?x3x64xf32>
  %expanded = tensor.expand_shape %1 [[0], [1], [2, 3]] output_shape [%dim, 3, 2, 32] : tensor<?x3x64xf32> into tensor<?x3x2x32xf32>
  %dim_0 = tensor.dim %expanded, %c0 : tensor<?x3x2x32xf32>
  %2 = tensor.empty(%dim_0) : tensor<?x3x2xi32>
  %3 = linalg.fill ins(%c0_i32 : i32) outs(%2 : tensor<?x3x2xi32>) -> tensor<?x3x2xi32>
  %4 = linalg.generic {indexing_maps = [#map1, #map2], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%expanded : tensor<?x3x2x32xf32>) outs(%3 : tensor<?x3x2xi32>) {
  ^bb0(%in: f32, %out: i32):
    %10 = arith.bitcast %in : f32 to i32
    %11 = arith.andi %10, %c2147483647_i32 : i32
    %12 = arith.maxsi %11, %out : i32
    linalg.yield %12 : i32
  } -> tensor<?x3x2xi32>
  %5 = tensor.empty(%dim_0) : tensor<?x3x2xi8>
  %6 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%4 : tensor<?x3x2xi32>) outs(%5 : tensor<?x3x2xi8>) {
  ^bb0(%in: i32, %out: i8):
    %10 = arith.addi %in, %in : i32
    %11 = arith.subi %10, %c8388608_i32 : i32
    %12 = arith.cmpi slt, %in, %c8388608_i32 : i32
    %13 = arith.select %12, %11, %in : i32
    %14 = arith.addi %13, %c131071_i32 : i32
    %15 = arith.shrsi %14, %c23_i32 : i32
    %16 = arith.maxsi %15, %c0_i32 : i32
    %17 = arith.minsi %16, %c254_i32 : i32
    %18 = arith.cmpi slt, %in, %c2139095040_i32 : i32
    %19 = arith.select %18, %17, %c254_i32 : i32
    %20 = arith.cmpi sgt, %in, %c2139095040_i32 : i32
    %21 = arith.select %20, %c255_i32, %19 : i32
    %22 = arith.trunci %21 : i32 to i8
    linalg.yield %22 : i8
  } -> tensor<?x3x2xi8>
  %7 = tensor.empty(%dim_0) : tensor<?x3x2x32xi8>
  %8 = linalg.generic {indexing_maps = [#map1, #map2, #map1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded, %6 : tensor<?x3x2x32xf32>, tensor<?x3x2xi8>) outs(%7 : tensor<?x3x2x32xi8>) {
  ^bb0(%in: f32, %in_1: i8, %out: i8):
    %10 = arith.bitcast %in : f32 to i32
    %11 = arith.extui %in_1 : i8 to i32
    %12 = arith.andi %10, %c2147483647_i32 : i32
    %13 = arith.sitofp %12 : i32 to f32
    %14 = arith.bitcast %13 : f32 to i32
    %15 = arith.subi %14, %c1249902592_i32 : i32
    %16 = arith.maxsi %15, %c-192937984_i32 : i32
    %17 = arith.cmpi slt, %12, %c8388608_i32 : i32
    %18 = arith.select %17, %16, %12 : i32
    %19 = arith.subi %c127_i32, %11 : i32
    %20 = arith.shli %19, %c23_i32 : i32
    %21 = arith.addi %18, %20 : i32
    %22 = arith.maxsi %21, %c0_i32 : i32
    %23 = arith.cmpi slt, %12, %c2139095040_i32 : i32
    %24 = arith.select %23, %22, %c2139095040_i32 : i32
    %25 = arith.bitcast %24 : i32 to f32
    %26 = arith.addf %25, %cst : f32
    %27 = arith.bitcast %26 : f32 to i32
    %28 = arith.subi %27, %c1207959552_i32 : i32
    %29 = arith.minsi %28, %c127_i32 : i32
    %30 = arith.cmpi slt, %10, %c0_i32 : i32
    %31 = arith.subi %c0_i32, %29 : i32
    %32 = arith.select %30, %31, %29 : i32
    %33 = arith.cmpi slt, %11, %c255_i32 : i32
    %34 = arith.select %33, %32, %c0_i32 : i32
    %35 = arith.trunci %34 : i32 to i8
    linalg.yield %35 : i8
  } -> tensor<?x3x2x32xi8>
  %9 = flow.tensor.bitcast %6 : tensor<?x3x2xi8>{%dim_0} -> tensor<?x3x2xf8E8M0FNU>{%dim_0}
  return %8, %9 : tensor<?x3x2x32xi8>, tensor<?x3x2xf8E8M0FNU>
}

// -----

// The values of other blocks are in registers, and in a group's scratch memory.
// CHECK: stream.executable private @mxc_quantize_mxfp8e4m3_mxfp6e2m3_floor_256 {
// CHECK: memref.alloca() {{.*}} : memref<16x32xf32>
// CHECK-LABEL: func.func @blocks(
// CHECK-NOT: linalg
// CHECK: flow.dispatch @mxc_quantize_mxfp8e4m3_mxfp6e2m3_floor_256::@mxc_quantize_mxfp8e4m3_mxfp6e2m3_floor_256(%{{.*}}, %{{.*}}) {mxc.quantizes = {{.*}}} : (tensor<8x32xi8>, tensor<8xi8>) -> (tensor<8x24xi8>, tensor<8xi8>)
// CHECK-NOT: linalg
#map = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d1)>
#map2 = affine_map<(d0, d1) -> (d0, d1)>
#map3 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map4 = affine_map<(d0, d1, d2, d3) -> (d0, d1)>
#map5 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
func.func @blocks(%arg0: tensor<4x2x32xf8E4M3FN>, %arg1: tensor<4x2xf8E8M0FNU>) -> (tensor<4x2x32xf6E2M3FN>, tensor<4x2xf8E8M0FNU>) {
  %c8_i32 = arith.constant 8 : i32
  %c32_i32 = arith.constant 32 : i32
  %c26_i32 = arith.constant 26 : i32
  %c31_i32 = arith.constant 31 : i32
  %c1065353216_i32 = arith.constant 1065353216 : i32
  %c1008_i32 = arith.constant 1008 : i32
  %c524287_i32 = arith.constant 524287 : i32
  %c1_i32 = arith.constant 1 : i32
  %c20_i32 = arith.constant 20 : i32
  %c1233125376_i32 = arith.constant 1233125376 : i32
  %cst = arith.constant 0x49800000 : f32
  %c127_i32 = arith.constant 127 : i32
  %c8388608_i32 = arith.constant 8388608 : i32
  %c-192937984_i32 = arith.constant -192937984 : i32
  %c1249902592_i32 = arith.constant 1249902592 : i32
  %c6_i32 = arith.constant 6 : i32
  %c255_i32 = arith.constant 255 : i32
  %c2139095040_i32 = arith.constant 2139095040 : i32
  %c254_i32 = arith.constant 254 : i32
  %c2_i32 = arith.constant 2 : i32
  %c23_i32 = arith.constant 23 : i32
  %c2147483647_i32 = arith.constant 2147483647 : i32
  %c0_i32 = arith.constant 0 : i32
  %0 = tensor.empty() : tensor<4x2x32xf32>
  %1 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg0, %arg1 : tensor<4x2x32xf8E4M3FN>, tensor<4x2xf8E8M0FNU>) outs(%0 : tensor<4x2x32xf32>) {
  ^bb0(%in: f8E4M3FN, %in_0: f8E8M0FNU, %out: f32):
    %14 = arith.scaling_extf %in, %in_0 : f8E4M3FN, f8E8M0FNU to f32
    linalg.yield %14 : f32
  } -> tensor<4x2x32xf32>
  %2 = tensor.empty() : tensor<4x2xi32>
  %3 = linalg.fill ins(%c0_i32 : i32) outs(%2 : tensor<4x2xi32>) -> tensor<4x2xi32>
  %4 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%1 : tensor<4x2x32xf32>) outs(%3 : tensor<4x2xi32>) {
  ^bb0(%in: f32, %out: i32):
    %14 = arith.bitcast %in : f32 to i32
    %15 = arith.andi %14, %c2147483647_i32 : i32
    %16 = arith.maxsi %15, %out : i32
    linalg.yield %16 : i32
  } -> tensor<4x2xi32>
  %5 = tensor.empty() : tensor<4x2xi8>
  %6 = linalg.generic {indexing_maps = [#map2, #map2], iterator_types = ["parallel", "parallel"]} ins(%4 : tensor<4x2xi32>) outs(%5 : tensor<4x2xi8>) {
  ^bb0(%in: i32, %out: i8):
    %14 = arith.shrsi %in, %c23_i32 : i32
    %15 = arith.subi %14, %c2_i32 : i32
    %16 = arith.maxsi %15, %c0_i32 : i32
    %17 = arith.minsi %16, %c254_i32 : i32
    %18 = arith.cmpi sgt, %in, %c2139095040_i32 : i32
    %19 = arith.select %18, %c255_i32, %17 : i32
    %20 = arith.trunci %19 : i32 to i8
    linalg.yield %20 : i8
  } -> tensor<4x2xi8>
  %expanded = tensor.expand_shape %1 [[0], [1], [2, 3]] output_shape [4, 2, 8, 4] : tensor<4x2x32xf32> into tensor<4x2x8x4xf32>
  %7 = tensor.empty() : tensor<4x2x8xi32>
  %8 = linalg.fill ins(%c0_i32 : i32) outs(%7 : tensor<4x2x8xi32>) -> tensor<4x2x8xi32>
  %9 = linalg.generic {indexing_maps = [#map3, #map4, #map5], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%expanded, %6 : tensor<4x2x8x4xf32>, tensor<4x2xi8>) outs(%8 : tensor<4x2x8xi32>) {
  ^bb0(%in: f32, %in_0: i8, %out: i32):
    %14 = linalg.index 3 : index
    %15 = arith.index_cast %14 : index to i32
    %16 = arith.muli %15, %c6_i32 : i32
    %17 = arith.bitcast %in : f32 to i32
    %18 = arith.extui %in_0 : i8 to i32
    %19 = arith.andi %17, %c2147483647_i32 : i32
    %20 = arith.sitofp %19 : i32 to f32
    %21 = arith.bitcast %20 : f32 to i32
    %22 = arith.subi %21, %c1249902592_i32 : i32
    %23 = arith.maxsi %22, %c-192937984_i32 : i32
    %24 = arith.cmpi slt, %19, %c8388608_i32 : i32
    %25 = arith.select %24, %23, %19 : i32
    %26 = arith.subi %c127_i32, %18 : i32
    %27 = arith.shli %26, %c23_i32 : i32
    %28 = arith.addi %25, %27 : i32
    %29 = arith.maxsi %28, %c0_i32 : i32
    %30 = arith.cmpi slt, %19, %c2139095040_i32 : i32
    %31 = arith.select %30, %29, %c2139095040_i32 : i32
    %32 = arith.bitcast %31 : i32 to f32
    %33 = arith.addf %32, %cst : f32
    %34 = arith.bitcast %33 : f32 to i32
    %35 = arith.subi %34, %c1233125376_i32 : i32
    %36 = arith.shrui %31, %c20_i32 : i32
    %37 = arith.andi %36, %c1_i32 : i32
    %38 = arith.addi %31, %c524287_i32 : i32
    %39 = arith.addi %38, %37 : i32
    %40 = arith.shrui %39, %c20_i32 : i32
    %41 = arith.subi %40, %c1008_i32 : i32
    %42 = arith.cmpi slt, %31, %c1065353216_i32 : i32
    %43 = arith.select %42, %35, %41 : i32
    %44 = arith.minsi %43, %c31_i32 : i32
    %45 = arith.shrui %17, %c26_i32 : i32
    %46 = arith.andi %45, %c32_i32 : i32
    %47 = arith.ori %44, %46 : i32
    %48 = arith.cmpi slt, %18, %c255_i32 : i32
    %49 = arith.select %48, %47, %c0_i32 : i32
    %50 = arith.shli %49, %16 : i32
    %51 = arith.ori %out, %50 : i32
    linalg.yield %51 : i32
  } -> tensor<4x2x8xi32>
  %10 = tensor.empty() : tensor<4x2x8x3xi8>
  %11 = linalg.generic {indexing_maps = [#map5, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%9 : tensor<4x2x8xi32>) outs(%10 : tensor<4x2x8x3xi8>) {
  ^bb0(%in: i32, %out: i8):
    %14 = linalg.index 3 : index
    %15 = arith.index_cast %14 : index to i32
    %16 = arith.muli %15, %c8_i32 : i32
    %17 = arith.shrui %in, %16 : i32
    %18 = arith.trunci %17 : i32 to i8
    linalg.yield %18 : i8
  } -> tensor<4x2x8x3xi8>
  %collapsed = tensor.collapse_shape %11 [[0], [1], [2, 3]] : tensor<4x2x8x3xi8> into tensor<4x2x24xi8>
  %12 = flow.tensor.bitcast %collapsed : tensor<4x2x24xi8> -> tensor<4x2x32xf6E2M3FN>
  %13 = flow.tensor.bitcast %6 : tensor<4x2xi8> -> tensor<4x2xf8E8M0FNU>
  return %12, %13 : tensor<4x2x32xf6E2M3FN>, tensor<4x2xf8E8M0FNU>
}

// -----

// A lane has a column: 32 rows of it are a block. Values of other blocks wait in scratch memory.
// CHECK: stream.executable private @mxc_quantize_mxfp8e4m3_mxfp4_even_transposed_64x64 {
// CHECK: memref.alloca() {{.*}} : memref<32x32xf32>
// CHECK: scf.if %{{.*}} -> (vector<16xi32>, vector<16xi32>, vector<16xi32>, vector<16xi32>) {
// CHECK: vector.interleave
// CHECK-COUNT-16: vector.store %{{.*}} : memref<64x2x4xi32>, vector<4xi32>
// CHECK-LABEL: func.func @turned(
// CHECK-NOT: linalg
// CHECK: flow.dispatch @mxc_quantize_mxfp8e4m3_mxfp4_even_transposed_64x64::{{.*}} : (tensor<128x32xi8>, tensor<128xi8>) -> (tensor<64x2x4xi32>, tensor<64x2xi8>)
// CHECK-NOT: linalg
#map = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d1)>
#map2 = affine_map<(d0, d1) -> (d1, d0)>
#map3 = affine_map<(d0, d1) -> (d0, d1)>
func.func @turned(%arg0: tensor<64x2x32xf8E4M3FN>, %arg1: tensor<64x2xf8E8M0FNU>) -> (tensor<64x2x32xf4E2M1FN>, tensor<64x2xf8E8M0FNU>) {
  %c8_i32 = arith.constant 8 : i32
  %c28_i32 = arith.constant 28 : i32
  %c7_i32 = arith.constant 7 : i32
  %c1065353216_i32 = arith.constant 1065353216 : i32
  %c252_i32 = arith.constant 252 : i32
  %c2097151_i32 = arith.constant 2097151 : i32
  %c1_i32 = arith.constant 1 : i32
  %c22_i32 = arith.constant 22 : i32
  %cst = arith.constant 0x4A800000 : f32
  %c127_i32 = arith.constant 127 : i32
  %c8388608_i32 = arith.constant 8388608 : i32
  %c-192937984_i32 = arith.constant -192937984 : i32
  %c1249902592_i32 = arith.constant 1249902592 : i32
  %c255_i32 = arith.constant 255 : i32
  %c2139095040_i32 = arith.constant 2139095040 : i32
  %c254_i32 = arith.constant 254 : i32
  %c2_i32 = arith.constant 2 : i32
  %c23_i32 = arith.constant 23 : i32
  %c2097152_i32 = arith.constant 2097152 : i32
  %c2147483647_i32 = arith.constant 2147483647 : i32
  %c0_i32 = arith.constant 0 : i32
  %0 = tensor.empty() : tensor<64x2x32xf32>
  %1 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg0, %arg1 : tensor<64x2x32xf8E4M3FN>, tensor<64x2xf8E8M0FNU>) outs(%0 : tensor<64x2x32xf32>) {
  ^bb0(%in: f8E4M3FN, %in_0: f8E8M0FNU, %out: f32):
    %13 = arith.scaling_extf %in, %in_0 : f8E4M3FN, f8E8M0FNU to f32
    linalg.yield %13 : f32
  } -> tensor<64x2x32xf32>
  %collapsed = tensor.collapse_shape %1 [[0], [1, 2]] : tensor<64x2x32xf32> into tensor<64x64xf32>
  %2 = tensor.empty() : tensor<64x64xf32>
  %3 = linalg.generic {indexing_maps = [#map2, #map3], iterator_types = ["parallel", "parallel"]} ins(%collapsed : tensor<64x64xf32>) outs(%2 : tensor<64x64xf32>) {
  ^bb0(%in: f32, %out: f32):
    linalg.yield %in : f32
  } -> tensor<64x64xf32>
  %expanded = tensor.expand_shape %3 [[0], [1, 2]] output_shape [64, 2, 32] : tensor<64x64xf32> into tensor<64x2x32xf32>
  %4 = tensor.empty() : tensor<64x2xi32>
  %5 = linalg.fill ins(%c0_i32 : i32) outs(%4 : tensor<64x2xi32>) -> tensor<64x2xi32>
  %6 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%expanded : tensor<64x2x32xf32>) outs(%5 : tensor<64x2xi32>) {
  ^bb0(%in: f32, %out: i32):
    %13 = arith.bitcast %in : f32 to i32
    %14 = arith.andi %13, %c2147483647_i32 : i32
    %15 = arith.maxsi %14, %out : i32
    linalg.yield %15 : i32
  } -> tensor<64x2xi32>
  %7 = tensor.empty() : tensor<64x2xi8>
  %8 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel"]} ins(%6 : tensor<64x2xi32>) outs(%7 : tensor<64x2xi8>) {
  ^bb0(%in: i32, %out: i8):
    %13 = arith.addi %in, %c2097152_i32 : i32
    %14 = arith.shrsi %13, %c23_i32 : i32
    %15 = arith.subi %14, %c2_i32 : i32
    %16 = arith.maxsi %15, %c0_i32 : i32
    %17 = arith.minsi %16, %c254_i32 : i32
    %18 = arith.cmpi sgt, %in, %c2139095040_i32 : i32
    %19 = arith.select %18, %c255_i32, %17 : i32
    %20 = arith.trunci %19 : i32 to i8
    linalg.yield %20 : i8
  } -> tensor<64x2xi8>
  %9 = tensor.empty() : tensor<64x2x32xi4>
  %10 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%expanded, %8 : tensor<64x2x32xf32>, tensor<64x2xi8>) outs(%9 : tensor<64x2x32xi4>) {
  ^bb0(%in: f32, %in_0: i8, %out: i4):
    %13 = arith.bitcast %in : f32 to i32
    %14 = arith.extui %in_0 : i8 to i32
    %15 = arith.andi %13, %c2147483647_i32 : i32
    %16 = arith.sitofp %15 : i32 to f32
    %17 = arith.bitcast %16 : f32 to i32
    %18 = arith.subi %17, %c1249902592_i32 : i32
    %19 = arith.maxsi %18, %c-192937984_i32 : i32
    %20 = arith.cmpi slt, %15, %c8388608_i32 : i32
    %21 = arith.select %20, %19, %15 : i32
    %22 = arith.subi %c127_i32, %14 : i32
    %23 = arith.shli %22, %c23_i32 : i32
    %24 = arith.addi %21, %23 : i32
    %25 = arith.maxsi %24, %c0_i32 : i32
    %26 = arith.cmpi slt, %15, %c2139095040_i32 : i32
    %27 = arith.select %26, %25, %c2139095040_i32 : i32
    %28 = arith.bitcast %27 : i32 to f32
    %29 = arith.addf %28, %cst : f32
    %30 = arith.bitcast %29 : f32 to i32
    %31 = arith.subi %30, %c1249902592_i32 : i32
    %32 = arith.shrui %27, %c22_i32 : i32
    %33 = arith.andi %32, %c1_i32 : i32
    %34 = arith.addi %27, %c2097151_i32 : i32
    %35 = arith.addi %34, %33 : i32
    %36 = arith.shrui %35, %c22_i32 : i32
    %37 = arith.subi %36, %c252_i32 : i32
    %38 = arith.cmpi slt, %27, %c1065353216_i32 : i32
    %39 = arith.select %38, %31, %37 : i32
    %40 = arith.minsi %39, %c7_i32 : i32
    %41 = arith.shrui %13, %c28_i32 : i32
    %42 = arith.andi %41, %c8_i32 : i32
    %43 = arith.ori %40, %42 : i32
    %44 = arith.cmpi slt, %14, %c255_i32 : i32
    %45 = arith.select %44, %43, %c0_i32 : i32
    %46 = arith.trunci %45 : i32 to i4
    linalg.yield %46 : i4
  } -> tensor<64x2x32xi4>
  %11 = flow.tensor.bitcast %10 : tensor<64x2x32xi4> -> tensor<64x2x32xf4E2M1FN>
  %12 = flow.tensor.bitcast %8 : tensor<64x2xi8> -> tensor<64x2xf8E8M0FNU>
  return %11, %12 : tensor<64x2x32xf4E2M1FN>, tensor<64x2xf8E8M0FNU>
}
