// RUN: mxc opt %s --split-input-file --passes mxc-lower-quantize-to-gpu-kernels | filecheck %s
// RUN: mxc opt %s --split-input-file --passes 'mxc-lower-quantize-to-gpu-kernels{target=gfx1201}' | filecheck %s --check-prefix=INTEGERS

// Without conversions: the same kernel, by integers, in waves of 32.
// INTEGERS: workgroup_size = [256, 1, 1] subgroup_size = 32
// INTEGERS: stream.executable private @mxc_quantize_bf16_mxfp4_even_192 {
// INTEGERS: amdgpu.dpp
// INTEGERS-NOT: amdgpu.packed_scaled_trunc
// INTEGERS: vector.store
// INTEGERS-LABEL: func.func @mxfp4(

// Four lanes share a block: 16 bytes of bf16 a lane, maxima of neighbours, eight elements at once.
// CHECK: workgroup_size = [256, 1, 1] subgroup_size = 64
// CHECK: stream.executable private @mxc_quantize_bf16_mxfp4_even_192 {
// CHECK: vector.load %{{.*}} : memref<?xbf16, #amdgpu.address_space<fat_raw_buffer>>, vector<8xbf16>
// CHECK: amdgpu.dpp %{{.*}} quad_perm([1 : i32, 0 : i32, 3 : i32, 2 : i32]) bound_ctrl(true) : i32
// CHECK: amdgpu.dpp %{{.*}} quad_perm([2 : i32, 3 : i32, 0 : i32, 1 : i32]) bound_ctrl(true) : i32
// The recipe: half of the last place that E2M1 keeps.
// CHECK: arith.constant 2097152 : i32
// CHECK: arith.shrsi
// CHECK: amdgpu.packed_scaled_trunc %{{.*}} into undef[0], %{{.*}} : vector<2xf32> to vector<8xf4E2M1FN>
// CHECK: amdgpu.packed_scaled_trunc %{{.*}} into %{{.*}}[3], %{{.*}} : vector<2xf32> to vector<8xf4E2M1FN>
// CHECK: vector.store %{{.*}} : memref<?xi32, #amdgpu.address_space<fat_raw_buffer>>, vector<1xi32>
// CHECK: memref.store %{{.*}} : memref<?xi8, #amdgpu.address_space<fat_raw_buffer>>
// CHECK-LABEL: func.func @mxfp4(
// CHECK-NOT: linalg
// CHECK: %[[ALL:.*]]:2 = flow.dispatch @mxc_quantize_bf16_mxfp4_even_192::@mxc_quantize_bf16_mxfp4_even_192(%{{.*}}) {mxc.quantizes = {{.*}}} : (tensor<192xbf16>) -> (tensor<24xi32>, tensor<6xi8>)
// CHECK: flow.tensor.bitcast %[[ALL]]#0 : tensor<24xi32> -> tensor<96xi8>
// CHECK-NOT: linalg
// CHECK: return %{{.*}}, %{{.*}} : tensor<3x2x32xf4E2M1FN>, tensor<3x2xf8E8M0FNU>
#map = affine_map<(d0, d1) -> (d0, d1)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map2 = affine_map<(d0, d1, d2) -> (d0, d1)>
func.func @mxfp4(%arg0: tensor<3x64xbf16>) -> (tensor<3x2x32xf4E2M1FN>, tensor<3x2xf8E8M0FNU>) {
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
  %0 = tensor.empty() : tensor<3x64xf32>
  %1 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]} ins(%arg0 : tensor<3x64xbf16>) outs(%0 : tensor<3x64xf32>) {
  ^bb0(%in: bf16, %out: f32):
    %11 = arith.extf %in : bf16 to f32
    linalg.yield %11 : f32
  } -> tensor<3x64xf32>
  %expanded = tensor.expand_shape %1 [[0], [1, 2]] output_shape [3, 2, 32] : tensor<3x64xf32> into tensor<3x2x32xf32>
  %2 = tensor.empty() : tensor<3x2xi32>
  %3 = linalg.fill ins(%c0_i32 : i32) outs(%2 : tensor<3x2xi32>) -> tensor<3x2xi32>
  %4 = linalg.generic {indexing_maps = [#map1, #map2], iterator_types = ["parallel", "parallel", "reduction"]} ins(%expanded : tensor<3x2x32xf32>) outs(%3 : tensor<3x2xi32>) {
  ^bb0(%in: f32, %out: i32):
    %11 = arith.bitcast %in : f32 to i32
    %12 = arith.andi %11, %c2147483647_i32 : i32
    %13 = arith.maxsi %12, %out : i32
    linalg.yield %13 : i32
  } -> tensor<3x2xi32>
  %5 = tensor.empty() : tensor<3x2xi8>
  %6 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]} ins(%4 : tensor<3x2xi32>) outs(%5 : tensor<3x2xi8>) {
  ^bb0(%in: i32, %out: i8):
    %11 = arith.addi %in, %c2097152_i32 : i32
    %12 = arith.shrsi %11, %c23_i32 : i32
    %13 = arith.subi %12, %c2_i32 : i32
    %14 = arith.maxsi %13, %c0_i32 : i32
    %15 = arith.minsi %14, %c254_i32 : i32
    %16 = arith.cmpi sgt, %in, %c2139095040_i32 : i32
    %17 = arith.select %16, %c255_i32, %15 : i32
    %18 = arith.trunci %17 : i32 to i8
    linalg.yield %18 : i8
  } -> tensor<3x2xi8>
  %7 = tensor.empty() : tensor<3x2x32xi4>
  %8 = linalg.generic {indexing_maps = [#map1, #map2, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%expanded, %6 : tensor<3x2x32xf32>, tensor<3x2xi8>) outs(%7 : tensor<3x2x32xi4>) {
  ^bb0(%in: f32, %in_0: i8, %out: i4):
    %11 = arith.bitcast %in : f32 to i32
    %12 = arith.extui %in_0 : i8 to i32
    %13 = arith.andi %11, %c2147483647_i32 : i32
    %14 = arith.sitofp %13 : i32 to f32
    %15 = arith.bitcast %14 : f32 to i32
    %16 = arith.subi %15, %c1249902592_i32 : i32
    %17 = arith.maxsi %16, %c-192937984_i32 : i32
    %18 = arith.cmpi slt, %13, %c8388608_i32 : i32
    %19 = arith.select %18, %17, %13 : i32
    %20 = arith.subi %c127_i32, %12 : i32
    %21 = arith.shli %20, %c23_i32 : i32
    %22 = arith.addi %19, %21 : i32
    %23 = arith.maxsi %22, %c0_i32 : i32
    %24 = arith.cmpi slt, %13, %c2139095040_i32 : i32
    %25 = arith.select %24, %23, %c2139095040_i32 : i32
    %26 = arith.bitcast %25 : i32 to f32
    %27 = arith.addf %26, %cst : f32
    %28 = arith.bitcast %27 : f32 to i32
    %29 = arith.subi %28, %c1249902592_i32 : i32
    %30 = arith.shrui %25, %c22_i32 : i32
    %31 = arith.andi %30, %c1_i32 : i32
    %32 = arith.addi %25, %c2097151_i32 : i32
    %33 = arith.addi %32, %31 : i32
    %34 = arith.shrui %33, %c22_i32 : i32
    %35 = arith.subi %34, %c252_i32 : i32
    %36 = arith.cmpi slt, %25, %c1065353216_i32 : i32
    %37 = arith.select %36, %29, %35 : i32
    %38 = arith.minsi %37, %c7_i32 : i32
    %39 = arith.shrui %11, %c28_i32 : i32
    %40 = arith.andi %39, %c8_i32 : i32
    %41 = arith.ori %38, %40 : i32
    %42 = arith.cmpi slt, %12, %c255_i32 : i32
    %43 = arith.select %42, %41, %c0_i32 : i32
    %44 = arith.trunci %43 : i32 to i4
    linalg.yield %44 : i4
  } -> tensor<3x2x32xi4>
  %9 = flow.tensor.bitcast %8 : tensor<3x2x32xi4> -> tensor<3x2x32xf4E2M1FN>
  %10 = flow.tensor.bitcast %6 : tensor<3x2xi8> -> tensor<3x2xf8E8M0FNU>
  return %9, %10 : tensor<3x2x32xf4E2M1FN>, tensor<3x2xf8E8M0FNU>
}

// -----

// Rows that come with the call: the number of blocks is the workload, and a scalar of the kernel.
// CHECK: stream.executable.export public @mxc_quantize_bf16_mxfp4_even_D workgroups(%[[N:.*]]: index) -> (index, index, index)
// CHECK: %[[UP:.*]] = arith.addi %[[N]], %c63
// CHECK: arith.divui %[[UP]], %c64
// CHECK: func.func @mxc_quantize_bf16_mxfp4_even_D({{.*}}, %[[BLOCKS:[^:]*]]: index)
// CHECK: %[[LEFT:.*]] = arith.subi %[[BLOCKS]], %{{.*}} : index
// CHECK: arith.minui %[[LEFT]], %c64
// CHECK-LABEL: func.func @dynamic_rows(
// CHECK: %[[M:.*]] = tensor.dim
// CHECK-NOT: linalg
// CHECK: %[[COUNT:.*]] = arith.muli %c2{{.*}}, %[[M]]
// CHECK: flow.dispatch @mxc_quantize_bf16_mxfp4_even_D::@mxc_quantize_bf16_mxfp4_even_D[%[[COUNT]]](%{{.*}}, %[[COUNT]]) {mxc.quantizes = {{.*}}} : (tensor<?xbf16>{%{{.*}}}, index) -> (tensor<?xi32>{%{{.*}}}, tensor<?xi8>{%[[COUNT]]})
// CHECK-NOT: linalg
// CHECK: return %{{.*}}, %{{.*}} : tensor<?x2x32xf4E2M1FN>, tensor<?x2xf8E8M0FNU>
#map = affine_map<(d0, d1) -> (d0, d1)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map2 = affine_map<(d0, d1, d2) -> (d0, d1)>
func.func @dynamic_rows(%arg0: tensor<?x64xbf16>) -> (tensor<?x2x32xf4E2M1FN>, tensor<?x2xf8E8M0FNU>) {
  %at = arith.constant 0 : index
  %m = tensor.dim %arg0, %at : tensor<?x64xbf16>
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
  %0 = tensor.empty(%m) : tensor<?x64xf32>
  %1 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]} ins(%arg0 : tensor<?x64xbf16>) outs(%0 : tensor<?x64xf32>) {
  ^bb0(%in: bf16, %out: f32):
    %11 = arith.extf %in : bf16 to f32
    linalg.yield %11 : f32
  } -> tensor<?x64xf32>
  %expanded = tensor.expand_shape %1 [[0], [1, 2]] output_shape [%m, 2, 32] : tensor<?x64xf32> into tensor<?x2x32xf32>
  %2 = tensor.empty(%m) : tensor<?x2xi32>
  %3 = linalg.fill ins(%c0_i32 : i32) outs(%2 : tensor<?x2xi32>) -> tensor<?x2xi32>
  %4 = linalg.generic {indexing_maps = [#map1, #map2], iterator_types = ["parallel", "parallel", "reduction"]} ins(%expanded : tensor<?x2x32xf32>) outs(%3 : tensor<?x2xi32>) {
  ^bb0(%in: f32, %out: i32):
    %11 = arith.bitcast %in : f32 to i32
    %12 = arith.andi %11, %c2147483647_i32 : i32
    %13 = arith.maxsi %12, %out : i32
    linalg.yield %13 : i32
  } -> tensor<?x2xi32>
  %5 = tensor.empty(%m) : tensor<?x2xi8>
  %6 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]} ins(%4 : tensor<?x2xi32>) outs(%5 : tensor<?x2xi8>) {
  ^bb0(%in: i32, %out: i8):
    %11 = arith.addi %in, %c2097152_i32 : i32
    %12 = arith.shrsi %11, %c23_i32 : i32
    %13 = arith.subi %12, %c2_i32 : i32
    %14 = arith.maxsi %13, %c0_i32 : i32
    %15 = arith.minsi %14, %c254_i32 : i32
    %16 = arith.cmpi sgt, %in, %c2139095040_i32 : i32
    %17 = arith.select %16, %c255_i32, %15 : i32
    %18 = arith.trunci %17 : i32 to i8
    linalg.yield %18 : i8
  } -> tensor<?x2xi8>
  %7 = tensor.empty(%m) : tensor<?x2x32xi4>
  %8 = linalg.generic {indexing_maps = [#map1, #map2, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%expanded, %6 : tensor<?x2x32xf32>, tensor<?x2xi8>) outs(%7 : tensor<?x2x32xi4>) {
  ^bb0(%in: f32, %in_0: i8, %out: i4):
    %11 = arith.bitcast %in : f32 to i32
    %12 = arith.extui %in_0 : i8 to i32
    %13 = arith.andi %11, %c2147483647_i32 : i32
    %14 = arith.sitofp %13 : i32 to f32
    %15 = arith.bitcast %14 : f32 to i32
    %16 = arith.subi %15, %c1249902592_i32 : i32
    %17 = arith.maxsi %16, %c-192937984_i32 : i32
    %18 = arith.cmpi slt, %13, %c8388608_i32 : i32
    %19 = arith.select %18, %17, %13 : i32
    %20 = arith.subi %c127_i32, %12 : i32
    %21 = arith.shli %20, %c23_i32 : i32
    %22 = arith.addi %19, %21 : i32
    %23 = arith.maxsi %22, %c0_i32 : i32
    %24 = arith.cmpi slt, %13, %c2139095040_i32 : i32
    %25 = arith.select %24, %23, %c2139095040_i32 : i32
    %26 = arith.bitcast %25 : i32 to f32
    %27 = arith.addf %26, %cst : f32
    %28 = arith.bitcast %27 : f32 to i32
    %29 = arith.subi %28, %c1249902592_i32 : i32
    %30 = arith.shrui %25, %c22_i32 : i32
    %31 = arith.andi %30, %c1_i32 : i32
    %32 = arith.addi %25, %c2097151_i32 : i32
    %33 = arith.addi %32, %31 : i32
    %34 = arith.shrui %33, %c22_i32 : i32
    %35 = arith.subi %34, %c252_i32 : i32
    %36 = arith.cmpi slt, %25, %c1065353216_i32 : i32
    %37 = arith.select %36, %29, %35 : i32
    %38 = arith.minsi %37, %c7_i32 : i32
    %39 = arith.shrui %11, %c28_i32 : i32
    %40 = arith.andi %39, %c8_i32 : i32
    %41 = arith.ori %38, %40 : i32
    %42 = arith.cmpi slt, %12, %c255_i32 : i32
    %43 = arith.select %42, %41, %c0_i32 : i32
    %44 = arith.trunci %43 : i32 to i4
    linalg.yield %44 : i4
  } -> tensor<?x2x32xi4>
  %9 = flow.tensor.bitcast %8 : tensor<?x2x32xi4>{%m} -> tensor<?x2x32xf4E2M1FN>{%m}
  %10 = flow.tensor.bitcast %6 : tensor<?x2xi8>{%m} -> tensor<?x2xf8E8M0FNU>{%m}
  return %9, %10 : tensor<?x2x32xf4E2M1FN>, tensor<?x2xf8E8M0FNU>
}

// -----

// No conversion makes mxint8: integers, of which four are a register.
// CHECK: stream.executable private @mxc_quantize_f32_mxint8_even_32 {
// CHECK-NOT: amdgpu.packed_scaled_trunc
// CHECK: arith.constant dense<255> : vector<8xi32>
// CHECK: vector.store %{{.*}} : memref<?xi32, #amdgpu.address_space<fat_raw_buffer>>, vector<2xi32>
// CHECK-LABEL: func.func @mxint8(
// CHECK-NOT: linalg
// CHECK: flow.dispatch @mxc_quantize_f32_mxint8_even_32::@mxc_quantize_f32_mxint8_even_32(
#map = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d1)>
#map2 = affine_map<(d0, d1) -> (d0, d1)>
func.func @mxint8(%arg0: tensor<1x32xf32>) -> (tensor<1x1x32xi8>, tensor<1x1xf8E8M0FNU>) {
  %c1207959552_i32 = arith.constant 1207959552 : i32
  %cst = arith.constant 1.310720e+05 : f32
  %c127_i32 = arith.constant 127 : i32
  %c-192937984_i32 = arith.constant -192937984 : i32
  %c1249902592_i32 = arith.constant 1249902592 : i32
  %c255_i32 = arith.constant 255 : i32
  %c2139095040_i32 = arith.constant 2139095040 : i32
  %c254_i32 = arith.constant 254 : i32
  %c23_i32 = arith.constant 23 : i32
  %c65536_i32 = arith.constant 65536 : i32
  %c8388608_i32 = arith.constant 8388608 : i32
  %c2147483647_i32 = arith.constant 2147483647 : i32
  %c0_i32 = arith.constant 0 : i32
  %expanded = tensor.expand_shape %arg0 [[0], [1, 2]] output_shape [1, 1, 32] : tensor<1x32xf32> into tensor<1x1x32xf32>
  %0 = tensor.empty() : tensor<1x1xi32>
  %1 = linalg.fill ins(%c0_i32 : i32) outs(%0 : tensor<1x1xi32>) -> tensor<1x1xi32>
  %2 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%expanded : tensor<1x1x32xf32>) outs(%1 : tensor<1x1xi32>) {
  ^bb0(%in: f32, %out: i32):
    %8 = arith.bitcast %in : f32 to i32
    %9 = arith.andi %8, %c2147483647_i32 : i32
    %10 = arith.maxsi %9, %out : i32
    linalg.yield %10 : i32
  } -> tensor<1x1xi32>
  %3 = tensor.empty() : tensor<1x1xi8>
  %4 = linalg.generic {indexing_maps = [#map2, #map2], iterator_types = ["parallel", "parallel"]} ins(%2 : tensor<1x1xi32>) outs(%3 : tensor<1x1xi8>) {
  ^bb0(%in: i32, %out: i8):
    %8 = arith.addi %in, %in : i32
    %9 = arith.subi %8, %c8388608_i32 : i32
    %10 = arith.cmpi slt, %in, %c8388608_i32 : i32
    %11 = arith.select %10, %9, %in : i32
    %12 = arith.addi %11, %c65536_i32 : i32
    %13 = arith.shrsi %12, %c23_i32 : i32
    %14 = arith.maxsi %13, %c0_i32 : i32
    %15 = arith.minsi %14, %c254_i32 : i32
    %16 = arith.cmpi sgt, %in, %c2139095040_i32 : i32
    %17 = arith.select %16, %c255_i32, %15 : i32
    %18 = arith.trunci %17 : i32 to i8
    linalg.yield %18 : i8
  } -> tensor<1x1xi8>
  %5 = tensor.empty() : tensor<1x1x32xi8>
  %6 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%expanded, %4 : tensor<1x1x32xf32>, tensor<1x1xi8>) outs(%5 : tensor<1x1x32xi8>) {
  ^bb0(%in: f32, %in_0: i8, %out: i8):
    %8 = arith.bitcast %in : f32 to i32
    %9 = arith.extui %in_0 : i8 to i32
    %10 = arith.andi %8, %c2147483647_i32 : i32
    %11 = arith.sitofp %10 : i32 to f32
    %12 = arith.bitcast %11 : f32 to i32
    %13 = arith.subi %12, %c1249902592_i32 : i32
    %14 = arith.maxsi %13, %c-192937984_i32 : i32
    %15 = arith.cmpi slt, %10, %c8388608_i32 : i32
    %16 = arith.select %15, %14, %10 : i32
    %17 = arith.subi %c127_i32, %9 : i32
    %18 = arith.shli %17, %c23_i32 : i32
    %19 = arith.addi %16, %18 : i32
    %20 = arith.maxsi %19, %c0_i32 : i32
    %21 = arith.cmpi slt, %10, %c2139095040_i32 : i32
    %22 = arith.select %21, %20, %c2139095040_i32 : i32
    %23 = arith.bitcast %22 : i32 to f32
    %24 = arith.addf %23, %cst : f32
    %25 = arith.bitcast %24 : f32 to i32
    %26 = arith.subi %25, %c1207959552_i32 : i32
    %27 = arith.minsi %26, %c127_i32 : i32
    %28 = arith.cmpi slt, %8, %c0_i32 : i32
    %29 = arith.subi %c0_i32, %27 : i32
    %30 = arith.select %28, %29, %27 : i32
    %31 = arith.cmpi slt, %9, %c255_i32 : i32
    %32 = arith.select %31, %30, %c0_i32 : i32
    %33 = arith.trunci %32 : i32 to i8
    linalg.yield %33 : i8
  } -> tensor<1x1x32xi8>
  %7 = flow.tensor.bitcast %4 : tensor<1x1xi8> -> tensor<1x1xf8E8M0FNU>
  return %6, %7 : tensor<1x1x32xi8>, tensor<1x1xf8E8M0FNU>
}

// -----

// Rows of nvfp4 have a scale each: a workgroup has a row, and joins in shared memory what 16 lanes found by DPP.
// INTEGERS: stream.executable private @mxc_quantize_f32_nvfp4_Dx64 {
// INTEGERS: gpu.address_space<workgroup>
// INTEGERS-NOT: amdgpu.packed_scaled_trunc
// INTEGERS-LABEL: func.func @nvfp4(
// CHECK: stream.executable private @mxc_quantize_f32_nvfp4_Dx64 {
// CHECK: vector.load %{{.*}} : memref<?xf32, #amdgpu.address_space<fat_raw_buffer>>, vector<8xf32>
// CHECK: amdgpu.dpp %{{.*}} row_mirror
// CHECK: memref.alloc() : memref<4xi32, #gpu.address_space<workgroup>>
// CHECK: amdgpu.lds_barrier
// CHECK: vector.reduction <maxsi>
// CHECK-COUNT-4: amdgpu.packed_scaled_trunc
// CHECK-LABEL: func.func @nvfp4(
// CHECK-NOT: linalg
// CHECK: flow.dispatch @mxc_quantize_f32_nvfp4_Dx64::@mxc_quantize_f32_nvfp4_Dx64[%{{.*}}](%{{.*}}) {mxc.quantizes = "nvfp4"} : (tensor<?xf32>{%{{.*}}}, index) -> (tensor<?xi32>{%{{.*}}}, tensor<?xi8>{%{{.*}}}, tensor<?xf32>{%{{.*}}})
#map = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d1)>
#map2 = affine_map<(d0, d1) -> (d0, d1)>
#map3 = affine_map<(d0, d1) -> (d0)>
#map4 = affine_map<(d0) -> (d0)>
#map5 = affine_map<(d0, d1, d2) -> (d0)>
func.func @nvfp4(%arg0: tensor<?x64xf32>) -> (tensor<?x4x8xi8>, tensor<?x4xi8>, tensor<?xf32>) {
  %c8_i32 = arith.constant 8 : i32
  %c28_i32 = arith.constant 28 : i32
  %c7_i32 = arith.constant 7 : i32
  %c1065353216_i32 = arith.constant 1065353216 : i32
  %c252_i32 = arith.constant 252 : i32
  %c2097151_i32 = arith.constant 2097151 : i32
  %c22_i32 = arith.constant 22 : i32
  %cst = arith.constant 0x4A800000 : f32
  %cst_0 = arith.constant 1.000000e+00 : f32
  %c128_i32 = arith.constant 128 : i32
  %c24_i32 = arith.constant 24 : i32
  %c126_i32 = arith.constant 126 : i32
  %c960_i32 = arith.constant 960 : i32
  %c524287_i32 = arith.constant 524287 : i32
  %c1_i32 = arith.constant 1 : i32
  %c20_i32 = arith.constant 20 : i32
  %c1182793728_i32 = arith.constant 1182793728 : i32
  %cst_1 = arith.constant 1.638400e+04 : f32
  %c8388608_i32 = arith.constant 8388608 : i32
  %c-192937984_i32 = arith.constant -192937984 : i32
  %c1249902592_i32 = arith.constant 1249902592 : i32
  %c1015021568_i32 = arith.constant 1015021568 : i32
  %c1138753536_i32 = arith.constant 1138753536 : i32
  %cst_2 = arith.constant 6.000000e+00 : f32
  %cst_3 = arith.constant 0x7FC00000 : f32
  %c2139095040_i32 = arith.constant 2139095040 : i32
  %cst_4 = arith.constant 2.688000e+03 : f32
  %c58720256_i32 = arith.constant 58720256 : i32
  %c2147483647_i32 = arith.constant 2147483647 : i32
  %c0_i32 = arith.constant 0 : i32
  %c0 = arith.constant 0 : index
  %dim = tensor.dim %arg0, %c0 : tensor<?x64xf32>
  %expanded = tensor.expand_shape %arg0 [[0], [1, 2]] output_shape [%dim, 4, 16] : tensor<?x64xf32> into tensor<?x4x16xf32>
  %0 = tensor.empty(%dim) : tensor<?x4xi32>
  %1 = linalg.fill ins(%c0_i32 : i32) outs(%0 : tensor<?x4xi32>) -> tensor<?x4xi32>
  %2 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%expanded : tensor<?x4x16xf32>) outs(%1 : tensor<?x4xi32>) {
  ^bb0(%in: f32, %out: i32):
    %14 = arith.bitcast %in : f32 to i32
    %15 = arith.andi %14, %c2147483647_i32 : i32
    %16 = arith.maxsi %15, %out : i32
    linalg.yield %16 : i32
  } -> tensor<?x4xi32>
  %3 = tensor.empty(%dim) : tensor<?xi32>
  %4 = linalg.fill ins(%c0_i32 : i32) outs(%3 : tensor<?xi32>) -> tensor<?xi32>
  %5 = linalg.generic {indexing_maps = [#map2, #map3], iterator_types = ["parallel", "reduction"]} ins(%2 : tensor<?x4xi32>) outs(%4 : tensor<?xi32>) {
  ^bb0(%in: i32, %out: i32):
    %14 = arith.maxsi %in, %out : i32
    linalg.yield %14 : i32
  } -> tensor<?xi32>
  %6 = tensor.empty(%dim) : tensor<?xf32>
  %7 = linalg.generic {indexing_maps = [#map4, #map4], iterator_types = ["parallel"]} ins(%5 : tensor<?xi32>) outs(%6 : tensor<?xf32>) {
  ^bb0(%in: i32, %out: f32):
    %14 = arith.bitcast %in : i32 to f32
    %15 = arith.divf %14, %cst_4 : f32
    %16 = arith.bitcast %15 : f32 to i32
    %17 = arith.maxsi %16, %c58720256_i32 : i32
    %18 = arith.bitcast %17 : i32 to f32
    %19 = arith.cmpi slt, %in, %c2139095040_i32 : i32
    %20 = arith.select %19, %18, %cst_3 : f32
    linalg.yield %20 : f32
  } -> tensor<?xf32>
  %8 = tensor.empty(%dim) : tensor<?x4xi8>
  %9 = linalg.generic {indexing_maps = [#map2, #map3, #map2], iterator_types = ["parallel", "parallel"]} ins(%2, %7 : tensor<?x4xi32>, tensor<?xf32>) outs(%8 : tensor<?x4xi8>) {
  ^bb0(%in: i32, %in_5: f32, %out: i8):
    %14 = arith.bitcast %in : i32 to f32
    %15 = arith.divf %14, %cst_2 : f32
    %16 = arith.divf %15, %in_5 : f32
    %17 = arith.bitcast %16 : f32 to i32
    %18 = arith.minsi %17, %c1138753536_i32 : i32
    %19 = arith.maxsi %18, %c1015021568_i32 : i32
    %20 = arith.andi %19, %c2147483647_i32 : i32
    %21 = arith.sitofp %20 : i32 to f32
    %22 = arith.bitcast %21 : f32 to i32
    %23 = arith.subi %22, %c1249902592_i32 : i32
    %24 = arith.maxsi %23, %c-192937984_i32 : i32
    %25 = arith.cmpi slt, %20, %c8388608_i32 : i32
    %26 = arith.select %25, %24, %20 : i32
    %27 = arith.maxsi %26, %c0_i32 : i32
    %28 = arith.cmpi slt, %20, %c2139095040_i32 : i32
    %29 = arith.select %28, %27, %c2139095040_i32 : i32
    %30 = arith.bitcast %29 : i32 to f32
    %31 = arith.addf %30, %cst_1 : f32
    %32 = arith.bitcast %31 : f32 to i32
    %33 = arith.subi %32, %c1182793728_i32 : i32
    %34 = arith.shrui %29, %c20_i32 : i32
    %35 = arith.andi %34, %c1_i32 : i32
    %36 = arith.addi %29, %c524287_i32 : i32
    %37 = arith.addi %36, %35 : i32
    %38 = arith.shrui %37, %c20_i32 : i32
    %39 = arith.subi %38, %c960_i32 : i32
    %40 = arith.cmpi slt, %29, %c1015021568_i32 : i32
    %41 = arith.select %40, %33, %39 : i32
    %42 = arith.minsi %41, %c126_i32 : i32
    %43 = arith.shrui %19, %c24_i32 : i32
    %44 = arith.andi %43, %c128_i32 : i32
    %45 = arith.ori %42, %44 : i32
    %46 = arith.trunci %45 : i32 to i8
    linalg.yield %46 : i8
  } -> tensor<?x4xi8>
  %10 = flow.tensor.bitcast %9 : tensor<?x4xi8>{%dim} -> tensor<?x4xf8E4M3FN>{%dim}
  %11 = tensor.empty(%dim) : tensor<?x4x16xi4>
  %12 = linalg.generic {indexing_maps = [#map, #map1, #map5, #map], iterator_types = ["parallel", "parallel", "parallel"]} ins(%expanded, %10, %7 : tensor<?x4x16xf32>, tensor<?x4xf8E4M3FN>, tensor<?xf32>) outs(%11 : tensor<?x4x16xi4>) {
  ^bb0(%in: f32, %in_5: f8E4M3FN, %in_6: f32, %out: i4):
    %14 = arith.divf %cst_0, %in_6 : f32
    %15 = arith.extf %in_5 : f8E4M3FN to f32
    %16 = arith.divf %14, %15 : f32
    %17 = arith.mulf %in, %16 : f32
    %18 = arith.bitcast %17 : f32 to i32
    %19 = arith.andi %18, %c2147483647_i32 : i32
    %20 = arith.sitofp %19 : i32 to f32
    %21 = arith.bitcast %20 : f32 to i32
    %22 = arith.subi %21, %c1249902592_i32 : i32
    %23 = arith.maxsi %22, %c-192937984_i32 : i32
    %24 = arith.cmpi slt, %19, %c8388608_i32 : i32
    %25 = arith.select %24, %23, %19 : i32
    %26 = arith.maxsi %25, %c0_i32 : i32
    %27 = arith.cmpi slt, %19, %c2139095040_i32 : i32
    %28 = arith.select %27, %26, %c2139095040_i32 : i32
    %29 = arith.bitcast %28 : i32 to f32
    %30 = arith.addf %29, %cst : f32
    %31 = arith.bitcast %30 : f32 to i32
    %32 = arith.subi %31, %c1249902592_i32 : i32
    %33 = arith.shrui %28, %c22_i32 : i32
    %34 = arith.andi %33, %c1_i32 : i32
    %35 = arith.addi %28, %c2097151_i32 : i32
    %36 = arith.addi %35, %34 : i32
    %37 = arith.shrui %36, %c22_i32 : i32
    %38 = arith.subi %37, %c252_i32 : i32
    %39 = arith.cmpi slt, %28, %c1065353216_i32 : i32
    %40 = arith.select %39, %32, %38 : i32
    %41 = arith.minsi %40, %c7_i32 : i32
    %42 = arith.shrui %18, %c28_i32 : i32
    %43 = arith.andi %42, %c8_i32 : i32
    %44 = arith.ori %41, %43 : i32
    %45 = arith.trunci %44 : i32 to i4
    linalg.yield %45 : i4
  } -> tensor<?x4x16xi4>
  %13 = flow.tensor.bitcast %12 : tensor<?x4x16xi4>{%dim} -> tensor<?x4x8xi8>{%dim}
  return %13, %9, %7 : tensor<?x4x8xi8>, tensor<?x4xi8>, tensor<?xf32>
}
