// RUN: mxc opt %s --split-input-file --passes mxc-raise-dequantize | filecheck %s

// A table looked up by the nibble that the place chooses, times two to the scale less its bias.
// CHECK: module attributes {mxc.notes = ["under scale byte 255 the program computes -inf where mxfp4 has nan, which is what is computed"]}
// CHECK-LABEL: @lookup
// CHECK-DAG: %[[E:.*]] = flow.tensor.bitcast %arg0 : tensor<8x32xi8> -> tensor<8x64xf4E2M1FN>
// CHECK-DAG: %[[S:.*]] = flow.tensor.bitcast %arg1 : tensor<8x2xi8> -> tensor<8x2xf8E8M0FNU>
// CHECK: linalg.generic {{.*}} ins(%[[E]], %[[S]] :
// CHECK-NEXT: ^bb0
// CHECK-NEXT: %[[V:.*]] = arith.scaling_extf
// CHECK-NEXT: linalg.yield %[[V]]
// CHECK-NOT: tensor.extract
func.func @lookup(%bytes: tensor<8x32xi8>, %scales: tensor<8x2xi8>) -> tensor<8x64xf32> {
  %values = arith.constant dense<[0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]> : tensor<16xf32>
  %e = tensor.empty() : tensor<8x64xf32>
  %w = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k floordiv 2)>, affine_map<(n, k) -> (n, k floordiv 32)>, affine_map<(n, k) -> (n, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%bytes, %scales : tensor<8x32xi8>, tensor<8x2xi8>) outs(%e : tensor<8x64xf32>) {
  ^bb0(%byte: i8, %scale: i8, %o: f32):
    %k = linalg.index 1 : index
    %two = arith.constant 2 : index
    %place = arith.remui %k, %two : index
    %part = arith.index_cast %place : index to i8
    %four = arith.constant 4 : i8
    %by = arith.muli %part, %four : i8
    %moved = arith.shrui %byte, %by : i8
    %low = arith.constant 15 : i8
    %bits = arith.andi %moved, %low : i8
    %code = arith.index_castui %bits : i8 to index
    %value = tensor.extract %values[%code] : tensor<16xf32>
    %wide = arith.extui %scale : i8 to i32
    %bias = arith.constant 127 : i32
    %n = arith.subi %wide, %bias : i32
    %float = arith.sitofp %n : i32 to f32
    %power = math.exp2 %float : f32
    %y = arith.mulf %value, %power : f32
    linalg.yield %y : f32
  } -> tensor<8x64xf32>
  func.return %w : tensor<8x64xf32>
}

// -----

// A scale that is shifted into the exponent of an f32 is zero for byte 0.
// CHECK: module attributes {mxc.notes = ["under scale byte 0 the program computes {{.*}}", "under scale byte 255 {{.*}}"]}
// CHECK-LABEL: @shift
// CHECK: arith.scaling_extf
// CHECK-NOT: arith.shli
func.func @shift(%codes: tensor<8x2x32xf8E4M3FN>, %scales: tensor<8x2xi8>) -> tensor<8x2x32xf32> {
  %e = tensor.empty() : tensor<8x2x32xf32>
  %w = linalg.generic {
      indexing_maps = [affine_map<(n, o, b) -> (n, o, b)>, affine_map<(n, o, b) -> (n, o)>, affine_map<(n, o, b) -> (n, o, b)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%codes, %scales : tensor<8x2x32xf8E4M3FN>, tensor<8x2xi8>) outs(%e : tensor<8x2x32xf32>) {
  ^bb0(%code: f8E4M3FN, %scale: i8, %o: f32):
    %wide = arith.extui %scale : i8 to i32
    %by = arith.constant 23 : i32
    %up = arith.shli %wide, %by : i32
    %power = arith.bitcast %up : i32 to f32
    %value = arith.extf %code : f8E4M3FN to f32
    %y = arith.mulf %value, %power : f32
    linalg.yield %y : f32
  } -> tensor<8x2x32xf32>
  func.return %w : tensor<8x2x32xf32>
}

// -----

// The body of a contraction multiplies (x * code) * scale: the code under its scale is a tensor.
// CHECK-LABEL: @in_body
// CHECK: %[[W:.*]] = linalg.generic {{.*}} ins(%arg1, %arg2 : tensor<8x64xf8E5M2>, tensor<8x2xf8E8M0FNU>)
// CHECK: arith.scaling_extf
// CHECK: linalg.generic {{.*}}"parallel", "parallel", "reduction"]} ins(%arg0, %[[W]] :
func.func @in_body(%x: tensor<4x64xf32>, %w: tensor<8x64xf8E5M2>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n, k floordiv 32)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w, %s : tensor<4x64xf32>, tensor<8x64xf8E5M2>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f8E5M2, %c: f8E8M0FNU, %o: f32):
    %be = arith.extf %b : f8E5M2 to f32
    %ce = arith.extf %c : f8E8M0FNU to f32
    %p = arith.mulf %a, %be : f32
    %q = arith.mulf %p, %ce : f32
    %t = arith.addf %o, %q : f32
    linalg.yield %t : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// One value of the table is wrong: it stays as it is, and the product says which.
// CHECK-LABEL: @wrong_table
// CHECK: tensor.extract
// CHECK: linalg.matmul {{.*}}mxc.contraction = {decoded, reason = "it is decoded almost as mxfp8e4m3: code 1 under scale byte 1 is
func.func @wrong_table(%x: tensor<4x8xf32>, %codes: tensor<8x64xf8E4M3FN>, %scales: tensor<8x64xf8E8M0FNU>, %acc: tensor<4x64xf32>) -> tensor<4x64xf32> {
  %e = tensor.empty() : tensor<8x64xf32>
  %w = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%codes, %scales : tensor<8x64xf8E4M3FN>, tensor<8x64xf8E8M0FNU>) outs(%e : tensor<8x64xf32>) {
  ^bb0(%code: f8E4M3FN, %scale: f8E8M0FNU, %o: f32):
    %table = arith.constant dense<[1.0, 3.0]> : tensor<2xf32>
    %value = arith.extf %code : f8E4M3FN to f32
    %one = arith.constant 0.001953125 : f32
    %is = arith.cmpf oeq, %value, %one : f32
    %at = arith.index_castui %is : i1 to index
    %factor = tensor.extract %table[%at] : tensor<2xf32>
    %power = arith.extf %scale : f8E8M0FNU to f32
    %p = arith.mulf %value, %factor : f32
    %y = arith.mulf %p, %power : f32
    linalg.yield %y : f32
  } -> tensor<8x64xf32>
  %r = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x64xf32>) outs(%acc : tensor<4x64xf32>) -> tensor<4x64xf32>
  func.return %r : tensor<4x64xf32>
}

// -----

// Activations that the program quantizes are computed from floats: their codes are read.
// CHECK-LABEL: @quantized
// CHECK: arith.truncf
// CHECK: arith.mulf
func.func @quantized(%x: tensor<4x64xf32>, %scales: tensor<4x64xf32>) -> tensor<4x64xf32> {
  %q = arith.truncf %x : tensor<4x64xf32> to tensor<4x64xf8E4M3FN>
  %f = arith.extf %q : tensor<4x64xf8E4M3FN> to tensor<4x64xf32>
  %y = arith.mulf %f, %scales : tensor<4x64xf32>
  func.return %y : tensor<4x64xf32>
}

// -----

// Rows that come with the call, and weights that the program holds.
// CHECK-LABEL: @dynamic_rows_by_constant_weights
// CHECK-DAG: %[[X:.*]] = flow.tensor.bitcast %arg1
// CHECK-DAG: %[[S:.*]] = flow.tensor.bitcast %{{.*}} : tensor<4x2xi8> -> tensor<4x2xf8E8M0FNU>
// CHECK-DAG: linalg.generic {{.*}} ins(%arg0, %[[X]] : tensor<?x64xf8E4M3FN>, tensor<?x2xf8E8M0FNU>)
// CHECK-DAG: linalg.generic {{.*}} ins(%{{.*}}, %[[S]] : tensor<4x64xf8E4M3FN>, tensor<4x2xf8E8M0FNU>)
func.func @dynamic_rows_by_constant_weights(%x: tensor<?x64xf8E4M3FN>, %xs: tensor<?x2xi8>, %acc: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %c0 = arith.constant 0 : index
  %m = tensor.dim %x, %c0 : tensor<?x64xf8E4M3FN>
  %c23 = arith.constant 23 : i32
  %e = tensor.empty(%m) : tensor<?x64xf32>
  %a = linalg.generic {
      indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m, k floordiv 32)>, affine_map<(m, k) -> (m, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%x, %xs : tensor<?x64xf8E4M3FN>, tensor<?x2xi8>) outs(%e : tensor<?x64xf32>) {
  ^bb0(%v: f8E4M3FN, %b: i8, %o: f32):
    %wide = arith.extf %v : f8E4M3FN to f32
    %bits = arith.extui %b : i8 to i32
    %exponent = arith.shli %bits, %c23 : i32
    %scale = arith.bitcast %exponent : i32 to f32
    %y = arith.mulf %wide, %scale : f32
    linalg.yield %y : f32
  } -> tensor<?x64xf32>
  %w = arith.constant dense<1.5> : tensor<4x64xf8E4M3FN>
  %ws = arith.constant dense<[[120, 121], [122, 123], [124, 125], [126, 127]]> : tensor<4x2xi8>
  %f = tensor.empty() : tensor<4x64xf32>
  %d = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k floordiv 32)>, affine_map<(n, k) -> (n, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%w, %ws : tensor<4x64xf8E4M3FN>, tensor<4x2xi8>) outs(%f : tensor<4x64xf32>) {
  ^bb0(%v: f8E4M3FN, %b: i8, %o: f32):
    %wide = arith.extf %v : f8E4M3FN to f32
    %bits = arith.extui %b : i8 to i32
    %exponent = arith.shli %bits, %c23 : i32
    %scale = arith.bitcast %exponent : i32 to f32
    %y = arith.mulf %wide, %scale : f32
    linalg.yield %y : f32
  } -> tensor<4x64xf32>
  %r = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins(%a, %d : tensor<?x64xf32>, tensor<4x64xf32>) outs(%acc : tensor<?x4xf32>) -> tensor<?x4xf32>
  func.return %r : tensor<?x4xf32>
}

// -----

// Low nibbles of a row are its first half: the nibbles are put in order before.
// CHECK: module attributes {mxc.notes = [{{.*}}, "nibbles of which one half of a byte continues the other are put in order with each call"]}
// CHECK-LABEL: @halves
// CHECK: %[[G:.*]] = linalg.generic {{.*}} ins(%{{.*}} : tensor<8x1x16x2x1xi8>) outs(%{{.*}} : tensor<8x1x1x2x16xi8>)
// CHECK: %[[H:.*]] = flow.tensor.bitcast %{{.*}} : tensor<8x1x2x16xi8> -> tensor<8x1x2x32xf4E2M1FN>
// CHECK: %[[E:.*]] = tensor.collapse_shape %[[H]] {{.*}} into tensor<8x64xf4E2M1FN>
// CHECK: %[[S:.*]] = flow.tensor.bitcast %arg1 : tensor<8x2xi8> -> tensor<8x2xf8E8M0FNU>
// CHECK: linalg.generic {{.*}} ins(%[[E]], %[[S]] :
// CHECK-NEXT: ^bb0
// CHECK-NEXT: arith.scaling_extf
func.func @halves(%bytes: tensor<8x32xi8>, %scales: tensor<8x2xi8>) -> tensor<8x64xf32> {
  %values = arith.constant dense<[0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]> : tensor<16xf32>
  %e = tensor.empty() : tensor<8x64xf32>
  %w = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k mod 32)>, affine_map<(n, k) -> (n, k floordiv 32)>, affine_map<(n, k) -> (n, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%bytes, %scales : tensor<8x32xi8>, tensor<8x2xi8>) outs(%e : tensor<8x64xf32>) {
  ^bb0(%byte: i8, %scale: i8, %o: f32):
    %k = linalg.index 1 : index
    %half = arith.constant 32 : index
    %place = arith.divui %k, %half : index
    %part = arith.index_cast %place : index to i8
    %four = arith.constant 4 : i8
    %by = arith.muli %part, %four : i8
    %moved = arith.shrui %byte, %by : i8
    %low = arith.constant 15 : i8
    %bits = arith.andi %moved, %low : i8
    %code = arith.index_castui %bits : i8 to index
    %value = tensor.extract %values[%code] : tensor<16xf32>
    %wide = arith.extui %scale : i8 to i32
    %bias = arith.constant 127 : i32
    %n = arith.subi %wide, %bias : i32
    %float = arith.sitofp %n : i32 to f32
    %power = math.exp2 %float : f32
    %y = arith.mulf %value, %power : f32
    linalg.yield %y : f32
  } -> tensor<8x64xf32>
  func.return %w : tensor<8x64xf32>
}

// -----

// Scales that are computed from codes and copied to each element are those codes.
// CHECK-LABEL: @decoded_scales
// CHECK-DAG: %[[S:.*]] = flow.tensor.bitcast %arg2 : tensor<8x2xi8> -> tensor<8x2xf8E8M0FNU>
// CHECK-DAG: %[[W:.*]] = linalg.generic {{.*}} ins(%arg1, %[[S]] : tensor<8x64xf8E4M3FN>, tensor<8x2xf8E8M0FNU>)
// CHECK: linalg.matvec ins(%[[W]], %arg0
// CHECK-NOT: math.exp2
func.func @decoded_scales(%x: tensor<64xf32>, %codes: tensor<8x64xf8E4M3FN>, %scales: tensor<8x2xi8>, %acc: tensor<8xf32>) -> tensor<8xf32> {
  %0 = tensor.empty() : tensor<8x64xf32>
  %values = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>], iterator_types = ["parallel", "parallel"]}
      ins(%codes : tensor<8x64xf8E4M3FN>) outs(%0 : tensor<8x64xf32>) {
  ^bb0(%code: f8E4M3FN, %o: f32):
    %y = arith.extf %code : f8E4M3FN to f32
    linalg.yield %y : f32
  } -> tensor<8x64xf32>
  %1 = tensor.empty() : tensor<8x2xf32>
  %powers = linalg.generic {
      indexing_maps = [affine_map<(n, o) -> (n, o)>, affine_map<(n, o) -> (n, o)>], iterator_types = ["parallel", "parallel"]}
      ins(%scales : tensor<8x2xi8>) outs(%1 : tensor<8x2xf32>) {
  ^bb0(%scale: i8, %o: f32):
    %wide = arith.extui %scale : i8 to i32
    %bias = arith.constant 127 : i32
    %n = arith.subi %wide, %bias : i32
    %float = arith.sitofp %n : i32 to f32
    %y = math.exp2 %float : f32
    linalg.yield %y : f32
  } -> tensor<8x2xf32>
  %2 = tensor.empty() : tensor<8x2x32xf32>
  %copy = linalg.broadcast ins(%powers : tensor<8x2xf32>) outs(%2 : tensor<8x2x32xf32>) dimensions = [2]
  %flat = tensor.collapse_shape %copy [[0], [1, 2]] : tensor<8x2x32xf32> into tensor<8x64xf32>
  %3 = tensor.empty() : tensor<8x64xf32>
  %w = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>], iterator_types = ["parallel", "parallel"]}
      ins(%values, %flat : tensor<8x64xf32>, tensor<8x64xf32>) outs(%3 : tensor<8x64xf32>) {
  ^bb0(%value: f32, %power: f32, %o: f32):
    %y = arith.mulf %value, %power : f32
    linalg.yield %y : f32
  } -> tensor<8x64xf32>
  %r = linalg.matvec ins(%w, %x : tensor<8x64xf32>, tensor<64xf32>) outs(%acc : tensor<8xf32>) -> tensor<8xf32>
  func.return %r : tensor<8xf32>
}

// -----

// Halves of a row of one block, whose loop has one step.
// CHECK-LABEL: @halves_of_one_block
// CHECK: flow.tensor.bitcast %{{.*}} -> tensor<{{.*}}xf4E2M1FN>
// CHECK: arith.scaling_extf
// CHECK-NOT: tensor.concat
func.func @halves_of_one_block(%bytes: tensor<8x16xi8>, %scales: tensor<8x1xf8E8M0FNU>) -> tensor<8x1x32xf32> {
  %values = arith.constant dense<[0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]> : tensor<16xf32>
  %e = tensor.empty() : tensor<8x16xf32>
  %low = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>], iterator_types = ["parallel", "parallel"]}
      ins(%bytes : tensor<8x16xi8>) outs(%e : tensor<8x16xf32>) {
  ^bb0(%byte: i8, %o: f32):
    %mask = arith.constant 15 : i8
    %bits = arith.andi %byte, %mask : i8
    %code = arith.index_castui %bits : i8 to index
    %value = tensor.extract %values[%code] : tensor<16xf32>
    linalg.yield %value : f32
  } -> tensor<8x16xf32>
  %high = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>], iterator_types = ["parallel", "parallel"]}
      ins(%bytes : tensor<8x16xi8>) outs(%e : tensor<8x16xf32>) {
  ^bb0(%byte: i8, %o: f32):
    %four = arith.constant 4 : i8
    %bits = arith.shrui %byte, %four : i8
    %code = arith.index_castui %bits : i8 to index
    %value = tensor.extract %values[%code] : tensor<16xf32>
    linalg.yield %value : f32
  } -> tensor<8x16xf32>
  %both = tensor.concat dim(1) %low, %high : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x32xf32>
  %blocks = tensor.expand_shape %both [[0], [1, 2]] output_shape [8, 1, 32] : tensor<8x32xf32> into tensor<8x1x32xf32>
  %f = tensor.empty() : tensor<8x1x32xf32>
  %w = linalg.generic {
      indexing_maps = [affine_map<(n, o, i) -> (n, o, i)>, affine_map<(n, o, i) -> (n, o)>, affine_map<(n, o, i) -> (n, o, i)>], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%blocks, %scales : tensor<8x1x32xf32>, tensor<8x1xf8E8M0FNU>) outs(%f : tensor<8x1x32xf32>) {
  ^bb0(%value: f32, %scale: f8E8M0FNU, %o: f32):
    %power = arith.extf %scale : f8E8M0FNU to f32
    %y = arith.mulf %value, %power : f32
    linalg.yield %y : f32
  } -> tensor<8x1x32xf32>
  func.return %w : tensor<8x1x32xf32>
}

// -----

// The scale of a whole tensor, which multiplies the scales of blocks, multiplies the decoded values.
// CHECK-LABEL: @scale_of_the_tensor
// CHECK-DAG: %[[G:.*]] = arith.constant dense<3.000000e-01> : tensor<f32>
// CHECK-DAG: %[[E:.*]] = flow.tensor.bitcast %arg0 : tensor<8x32xi8> -> tensor<8x64xf4E2M1FN>
// CHECK: linalg.generic {{.*}} ins(%[[E]], %arg1, %[[G]] : tensor<8x64xf4E2M1FN>, tensor<8x4xf8E4M3FN>, tensor<f32>)
// CHECK-NEXT: ^bb0
// CHECK: %[[V:.*]] = arith.mulf
// CHECK-NEXT: %[[W:.*]] = arith.mulf %[[V]]
// CHECK-NEXT: linalg.yield %[[W]]
func.func @scale_of_the_tensor(%bytes: tensor<8x32xi8>, %scales: tensor<8x4xf8E4M3FN>) -> tensor<8x64xf32> {
  %values = arith.constant dense<[0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]> : tensor<16xf32>
  %e = tensor.empty() : tensor<8x64xf32>
  %w = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k floordiv 2)>, affine_map<(n, k) -> (n, k floordiv 16)>, affine_map<(n, k) -> (n, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%bytes, %scales : tensor<8x32xi8>, tensor<8x4xf8E4M3FN>) outs(%e : tensor<8x64xf32>) {
  ^bb0(%byte: i8, %scale: f8E4M3FN, %o: f32):
    %k = linalg.index 1 : index
    %two = arith.constant 2 : index
    %place = arith.remui %k, %two : index
    %part = arith.index_cast %place : index to i8
    %four = arith.constant 4 : i8
    %by = arith.muli %part, %four : i8
    %moved = arith.shrui %byte, %by : i8
    %low = arith.constant 15 : i8
    %bits = arith.andi %moved, %low : i8
    %code = arith.index_castui %bits : i8 to index
    %value = tensor.extract %values[%code] : tensor<16xf32>
    %whole = arith.constant 3.000000e-01 : f32
    %wide = arith.extf %scale : f8E4M3FN to f32
    %both = arith.mulf %wide, %whole : f32
    %y = arith.mulf %value, %both : f32
    linalg.yield %y : f32
  } -> tensor<8x64xf32>
  func.return %w : tensor<8x64xf32>
}
