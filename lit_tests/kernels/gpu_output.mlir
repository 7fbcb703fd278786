// RUN: mxc opt %s --passes mxc-choose-gpu-schedule,mxc-lower-to-gpu-kernels | filecheck %s

// A product whose result is read as MX blocks alone: one kernel, and no f32 in memory.

// CHECK: stream.executable private @mxc_mxfp8e4m3_mxfp4_1x4x64x64_as_mxfp8e4m3_even {
// A wave has two tiles along the columns: a block.
// CHECK: stream.return %c2, %c1, %c1_0 : index, index, index
// CHECK-COUNT-8: amdgpu.scaled_mfma
// Conversions to 8 bits saturate from here on; matrix instructions would have done, too.
// CHECK: llvm.call_intrinsic "llvm.amdgcn.s.setreg"
// CHECK-NOT: amdgpu.scaled_mfma
// Four columns of each tile become eight in a row; then the largest of four lanes.
// CHECK-COUNT-4: rocdl.permlane16.swap
// CHECK: vector.from_elements %{{.*}} : vector<8xi32>
// CHECK: rocdl.permlane16.swap
// CHECK: arith.maxsi
// CHECK: rocdl.permlane32.swap
// CHECK: arith.maxsi
// CHECK-COUNT-4: amdgpu.packed_scaled_trunc %{{.*}} : vector<2xf32> to vector<4xf8E4M3FN>
// CHECK: vector.store %{{.*}} : memref<?xi32, #amdgpu.address_space<fat_raw_buffer>>, vector<2xi32>
// CHECK: memref.store %{{.*}} : memref<?xi8, #amdgpu.address_space<fat_raw_buffer>>

// CHECK-LABEL: func.func @blocks_out(
// CHECK-NOT: linalg
// CHECK: flow.dispatch @mxc_mxfp8e4m3_mxfp4_1x4x64x64_as_mxfp8e4m3_even::{{.*}} {mxc.contraction = {{{.*}}out = {block = 32 : i64, element = f8E4M3FN, scale = f8E8M0FNU}{{.*}}}} : {{.*}} -> (tensor<64xi32>, tensor<8xi8>)
// CHECK-NOT: linalg
// CHECK: return %{{.*}}, %{{.*}} : tensor<4x2x32xf8E4M3FN>, tensor<4x2xf8E8M0FNU>
#map = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>
#map1 = affine_map<(d0, d1, d2, d3) -> (d1, d2, d3)>
#map2 = affine_map<(d0, d1, d2, d3) -> (d0, d2)>
#map3 = affine_map<(d0, d1, d2, d3) -> (d1, d2)>
#map4 = affine_map<(d0, d1, d2, d3) -> (d0, d1)>
#map5 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map6 = affine_map<(d0, d1, d2) -> (d0, d1)>
#map7 = affine_map<(d0, d1) -> (d0, d1)>
func.func @blocks_out(%arg0: tensor<4x2x32xf8E4M3FN>, %arg1: tensor<4x2xf8E8M0FNU>, %arg2: tensor<64x2x32xf4E2M1FN>, %arg3: tensor<64x2xf8E8M0FNU>) -> (tensor<4x2x32xf8E4M3FN>, tensor<4x2xf8E8M0FNU>) {
  %c128_i32 = arith.constant 128 : i32
  %c24_i32 = arith.constant 24 : i32
  %c126_i32 = arith.constant 126 : i32
  %c1015021568_i32 = arith.constant 1015021568 : i32
  %c960_i32 = arith.constant 960 : i32
  %c524287_i32 = arith.constant 524287 : i32
  %c1_i32 = arith.constant 1 : i32
  %c20_i32 = arith.constant 20 : i32
  %c1182793728_i32 = arith.constant 1182793728 : i32
  %cst = arith.constant 1.638400e+04 : f32
  %c127_i32 = arith.constant 127 : i32
  %c8388608_i32 = arith.constant 8388608 : i32
  %c-192937984_i32 = arith.constant -192937984 : i32
  %c1249902592_i32 = arith.constant 1249902592 : i32
  %c255_i32 = arith.constant 255 : i32
  %c2139095040_i32 = arith.constant 2139095040 : i32
  %c254_i32 = arith.constant 254 : i32
  %c8_i32 = arith.constant 8 : i32
  %c23_i32 = arith.constant 23 : i32
  %c524288_i32 = arith.constant 524288 : i32
  %c2147483647_i32 = arith.constant 2147483647 : i32
  %c0_i32 = arith.constant 0 : i32
  %cst_0 = arith.constant 0.000000e+00 : f32
  %0 = tensor.empty() : tensor<4x64xf32>
  %1 = linalg.fill ins(%cst_0 : f32) outs(%0 : tensor<4x64xf32>) -> tensor<4x64xf32>
  %2 = linalg.generic {indexing_maps = [#map, #map1, #map2, #map3, #map4], iterator_types = ["parallel", "parallel", "reduction", "reduction"]} ins(%arg0, %arg2, %arg1, %arg3 : tensor<4x2x32xf8E4M3FN>, tensor<64x2x32xf4E2M1FN>, tensor<4x2xf8E8M0FNU>, tensor<64x2xf8E8M0FNU>) outs(%1 : tensor<4x64xf32>) {
  ^bb0(%in: f8E4M3FN, %in_1: f4E2M1FN, %in_2: f8E8M0FNU, %in_3: f8E8M0FNU, %out: f32):
    %12 = arith.scaling_extf %in, %in_2 : f8E4M3FN, f8E8M0FNU to f32
    %13 = arith.scaling_extf %in_1, %in_3 : f4E2M1FN, f8E8M0FNU to f32
    %14 = arith.mulf %12, %13 : f32
    %15 = arith.addf %out, %14 : f32
    linalg.yield %15 : f32
  } -> tensor<4x64xf32>
  %expanded = tensor.expand_shape %2 [[0], [1, 2]] output_shape [4, 2, 32] : tensor<4x64xf32> into tensor<4x2x32xf32>
  %3 = tensor.empty() : tensor<4x2xi32>
  %4 = linalg.fill ins(%c0_i32 : i32) outs(%3 : tensor<4x2xi32>) -> tensor<4x2xi32>
  %5 = linalg.generic {indexing_maps = [#map5, #map6], iterator_types = ["parallel", "parallel", "reduction"]} ins(%expanded : tensor<4x2x32xf32>) outs(%4 : tensor<4x2xi32>) {
  ^bb0(%in: f32, %out: i32):
    %12 = arith.bitcast %in : f32 to i32
    %13 = arith.andi %12, %c2147483647_i32 : i32
    %14 = arith.maxsi %13, %out : i32
    linalg.yield %14 : i32
  } -> tensor<4x2xi32>
  %6 = tensor.empty() : tensor<4x2xi8>
  %7 = linalg.generic {indexing_maps = [#map7, #map7], iterator_types = ["parallel", "parallel"]} ins(%5 : tensor<4x2xi32>) outs(%6 : tensor<4x2xi8>) {
  ^bb0(%in: i32, %out: i8):
    %12 = arith.addi %in, %c524288_i32 : i32
    %13 = arith.shrsi %12, %c23_i32 : i32
    %14 = arith.subi %13, %c8_i32 : i32
    %15 = arith.maxsi %14, %c0_i32 : i32
    %16 = arith.minsi %15, %c254_i32 : i32
    %17 = arith.cmpi sgt, %in, %c2139095040_i32 : i32
    %18 = arith.select %17, %c255_i32, %16 : i32
    %19 = arith.trunci %18 : i32 to i8
    linalg.yield %19 : i8
  } -> tensor<4x2xi8>
  %8 = tensor.empty() : tensor<4x2x32xi8>
  %9 = linalg.generic {indexing_maps = [#map5, #map6, #map5], iterator_types = ["parallel", "parallel", "parallel"]} ins(%expanded, %7 : tensor<4x2x32xf32>, tensor<4x2xi8>) outs(%8 : tensor<4x2x32xi8>) {
  ^bb0(%in: f32, %in_1: i8, %out: i8):
    %12 = arith.bitcast %in : f32 to i32
    %13 = arith.extui %in_1 : i8 to i32
    %14 = arith.andi %12, %c2147483647_i32 : i32
    %15 = arith.sitofp %14 : i32 to f32
    %16 = arith.bitcast %15 : f32 to i32
    %17 = arith.subi %16, %c1249902592_i32 : i32
    %18 = arith.maxsi %17, %c-192937984_i32 : i32
    %19 = arith.cmpi slt, %14, %c8388608_i32 : i32
    %20 = arith.select %19, %18, %14 : i32
    %21 = arith.subi %c127_i32, %13 : i32
    %22 = arith.shli %21, %c23_i32 : i32
    %23 = arith.addi %20, %22 : i32
    %24 = arith.maxsi %23, %c0_i32 : i32
    %25 = arith.cmpi slt, %14, %c2139095040_i32 : i32
    %26 = arith.select %25, %24, %c2139095040_i32 : i32
    %27 = arith.bitcast %26 : i32 to f32
    %28 = arith.addf %27, %cst : f32
    %29 = arith.bitcast %28 : f32 to i32
    %30 = arith.subi %29, %c1182793728_i32 : i32
    %31 = arith.shrui %26, %c20_i32 : i32
    %32 = arith.andi %31, %c1_i32 : i32
    %33 = arith.addi %26, %c524287_i32 : i32
    %34 = arith.addi %33, %32 : i32
    %35 = arith.shrui %34, %c20_i32 : i32
    %36 = arith.subi %35, %c960_i32 : i32
    %37 = arith.cmpi slt, %26, %c1015021568_i32 : i32
    %38 = arith.select %37, %30, %36 : i32
    %39 = arith.minsi %38, %c126_i32 : i32
    %40 = arith.shrui %12, %c24_i32 : i32
    %41 = arith.andi %40, %c128_i32 : i32
    %42 = arith.ori %39, %41 : i32
    %43 = arith.cmpi slt, %13, %c255_i32 : i32
    %44 = arith.select %43, %42, %c0_i32 : i32
    %45 = arith.trunci %44 : i32 to i8
    linalg.yield %45 : i8
  } -> tensor<4x2x32xi8>
  %10 = flow.tensor.bitcast %9 : tensor<4x2x32xi8> -> tensor<4x2x32xf8E4M3FN>
  %11 = flow.tensor.bitcast %7 : tensor<4x2xi8> -> tensor<4x2xf8E8M0FNU>
  return %10, %11 : tensor<4x2x32xf8E4M3FN>, tensor<4x2xf8E8M0FNU>
}
