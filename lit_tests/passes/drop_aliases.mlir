// RUN: mxc opt %s --split-input-file --passes mxc-drop-aliases | filecheck %s

// Each dispatch writes to the memory that the other reads: both results get their own.
// CHECK-LABEL: @exchanged
// CHECK: %[[R:.*]] = flow.dispatch @k::@next
// CHECK: %[[S:.*]] = flow.dispatch @k::@other
// CHECK-NOT: hal.tensor.alias
// CHECK: hal.tensor.export %[[R]]
// CHECK: hal.tensor.export %[[S]]
util.func public @exchanged(%x: !hal.buffer_view, %y: !hal.buffer_view) -> (!hal.buffer_view, !hal.buffer_view) {
  %a = hal.tensor.import consume %x "a" : !hal.buffer_view -> tensor<4xf32>
  %b = hal.tensor.import consume %y "b" : !hal.buffer_view -> tensor<4xf32>
  %r = flow.dispatch @k::@next(%b) : (tensor<4xf32>) -> tensor<4xf32>
  %s = flow.dispatch @k::@other(%a) : (tensor<4xf32>) -> tensor<4xf32>
  %ra = hal.tensor.alias %r : tensor<4xf32> to %x : !hal.buffer_view
  %sa = hal.tensor.alias %s : tensor<4xf32> to %y : !hal.buffer_view
  %re = hal.tensor.export %ra "r" : tensor<4xf32> -> !hal.buffer_view
  %se = hal.tensor.export %sa "s" : tensor<4xf32> -> !hal.buffer_view
  util.return %re, %se : !hal.buffer_view, !hal.buffer_view
}

// -----

// An update in place, behind all that reads the argument, stays; what only becomes another shape too.
// CHECK-LABEL: @updated
// CHECK: hal.tensor.alias %{{.*}} : tensor<2x2xf32> to %arg0
util.func public @updated(%x: !hal.buffer_view) -> !hal.buffer_view {
  %a = hal.tensor.import consume %x "a" : !hal.buffer_view -> tensor<2x2xf32>
  %flat = flow.tensor.reshape %a : tensor<2x2xf32> -> tensor<4xf32>
  %s = flow.dispatch @k::@sum(%a) : (tensor<2x2xf32>) -> tensor<f32>
  %c4 = arith.constant 4 : index
  %r = flow.dispatch @k::@update[%c4](%s, %flat) : (tensor<f32>, tensor<4xf32>) -> %flat
  %w = flow.tensor.reshape %r : tensor<4xf32> -> tensor<2x2xf32>
  %ra = hal.tensor.alias %w : tensor<2x2xf32> to %x : !hal.buffer_view
  %re = hal.tensor.export %ra "r" : tensor<2x2xf32> -> !hal.buffer_view
  util.return %re : !hal.buffer_view
}

// -----

// The dispatch reads the argument in an order of its own while it writes.
// CHECK-LABEL: @read_elsewhere
// CHECK-NOT: hal.tensor.alias
util.func public @read_elsewhere(%x: !hal.buffer_view) -> !hal.buffer_view {
  %a = hal.tensor.import consume %x "a" : !hal.buffer_view -> tensor<4xf32>
  %r = flow.dispatch @k::@reverse(%a) : (tensor<4xf32>) -> tensor<4xf32>
  %ra = hal.tensor.alias %r : tensor<4xf32> to %x : !hal.buffer_view
  %re = hal.tensor.export %ra "r" : tensor<4xf32> -> !hal.buffer_view
  util.return %re : !hal.buffer_view
}

// -----

// A sum beside an update may run after it. A result that is the argument, as it was, is a reader too.
// CHECK-LABEL: @read_beside
// CHECK-NOT: hal.tensor.alias
util.func public @read_beside(%x: !hal.buffer_view, %y: !hal.buffer_view) -> (!hal.buffer_view, !hal.buffer_view, !hal.buffer_view) {
  %a = hal.tensor.import consume %x "a" : !hal.buffer_view -> tensor<4xf32>
  %b = hal.tensor.import consume %y "b" : !hal.buffer_view -> tensor<4xf32>
  %r = flow.dispatch @k::@update(%a) : (tensor<4xf32>) -> %a
  %s = flow.dispatch @k::@sum(%a) : (tensor<4xf32>) -> tensor<f32>
  %ra = hal.tensor.alias %r : tensor<4xf32> to %x : !hal.buffer_view
  %ba = hal.tensor.alias %a : tensor<4xf32> to %y : !hal.buffer_view
  %re = hal.tensor.export %ra "r" : tensor<4xf32> -> !hal.buffer_view
  %be = hal.tensor.export %ba "b" : tensor<4xf32> -> !hal.buffer_view
  %t = flow.dispatch @k::@scaled(%b, %s) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %te = hal.tensor.export %t "t" : tensor<4xf32> -> !hal.buffer_view
  util.return %re, %be, %te : !hal.buffer_view, !hal.buffer_view, !hal.buffer_view
}

// -----

// Nothing reads the argument.
// CHECK-LABEL: @unread
// CHECK: hal.tensor.alias %{{.*}} : tensor<4xf32> to %arg0
util.func public @unread(%x: !hal.buffer_view, %y: !hal.buffer_view) -> !hal.buffer_view {
  %b = hal.tensor.import %y "b" : !hal.buffer_view -> tensor<4xf32>
  %r = flow.dispatch @k::@next(%b) : (tensor<4xf32>) -> tensor<4xf32>
  %ra = hal.tensor.alias %r : tensor<4xf32> to %x : !hal.buffer_view
  %re = hal.tensor.export %ra "r" : tensor<4xf32> -> !hal.buffer_view
  util.return %re : !hal.buffer_view
}
