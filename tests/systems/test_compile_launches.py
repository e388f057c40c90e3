"""Tests what is counted of a GPU's program: kernels, bytes of slices and of results in place, loops."""

from systems.compile import hlo, launches

PROGRAM = """HloModule m

%sum (p.1: f32[4,8], i.1: s32[]) -> f32[8] {
  %p.1 = f32[4,8]{1,0} parameter(0)
  %i.1 = s32[] parameter(1)
  %zero.1 = s32[] constant(0)
  %twice = f32[4,8]{1,0} add(%p.1, %p.1)
  %row = f32[1,8]{1,0} dynamic-slice(%twice, %i.1, %zero.1), dynamic_slice_sizes={1,8}
  ROOT %flat = f32[8]{0} bitcast(%row)
}

%put (p.2: f32[4,8], x.2: f32[8], i.2: s32[]) -> f32[4,8] {
  %p.2 = f32[4,8]{1,0} parameter(0)
  %x.2 = f32[8]{0} parameter(1)
  %i.2 = s32[] parameter(2)
  %zero.2 = s32[] constant(0)
  %row.2 = f32[1,8]{1,0} bitcast(%x.2)
  ROOT %done = f32[4,8]{1,0} dynamic-update-slice(%p.2, %row.2, %i.2, %zero.2)
}

%body (s: (s32[], f32[4,8], f32[4,8])) -> (s32[], f32[4,8], f32[4,8]) {
  %s = (s32[], f32[4,8]{1,0}, f32[4,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %a = f32[4,8]{1,0} get-tuple-element(%s), index=1
  %b = f32[4,8]{1,0} get-tuple-element(%s), index=2
  %r = f32[8]{0} fusion(%a, %i), kind=kLoop, calls=%sum
  %u = f32[4,8]{1,0} fusion(%b, %r, %i), kind=kLoop, calls=%put
  ROOT %t = (s32[], f32[4,8]{1,0}, f32[4,8]{1,0}) tuple(%i, %a, %u)
}

ENTRY %main (x: f32[4,8], s0: (s32[], f32[4,8], f32[4,8])) -> f32[8,4] {
  %x = f32[4,8]{1,0} parameter(0)
  %s0 = (s32[], f32[4,8]{1,0}, f32[4,8]{1,0}) parameter(1)
  %w = (s32[], f32[4,8]{1,0}, f32[4,8]{1,0}) while(%s0), body=%body, KNOWN, metadata={op_name="net/while"}
  %y = f32[4,8]{1,0} get-tuple-element(%w), index=2
  %c = (f32[8,4]{1,0}, u8[100]{0}) custom-call(%y, %x), custom_call_target="__cudnn$convForward"
  %g = f32[8,4]{1,0} get-tuple-element(%c), index=0
  ROOT %copy.1 = f32[8,4]{0,1} copy(%g)
}
"""
KNOWN = 'backend_config={"known_trip_count":{"n":"4"}}'
ROW, WHOLE, COUNTER = 8 * 4, 32 * 4, 4


def test_kernels_bytes_and_loops_are_counted() -> None:
    actual = launches.launches(hlo.Program(PROGRAM.replace("KNOWN", KNOWN)))
    assert actual["kernels"] == 4 * 2 + 2 and actual["loop_kernels"] == 4 * 2
    # A turn reads one row and writes it in place; the call's scratch memory does not count.
    turn = (ROW + COUNTER) + (ROW + COUNTER)
    assert actual["bytes_read"] == 4 * turn + 2 * WHOLE + WHOLE
    assert actual["bytes_written"] == 4 * 2 * ROW + WHOLE + WHOLE
    assert actual["copies"] == {"count": 1, "bytes": WHOLE}
    assert actual["loops"] == [{"name": "net/while", "turns": 4, "kernels": 2, "kinds": {"other": 2}}]


def test_a_loop_of_unknown_length_counts_once_and_says_so() -> None:
    counts = launches.launches(hlo.Program(PROGRAM.replace("KNOWN, ", "")))
    assert counts["kernels"] == 2 + 2 and counts["loops"][0]["turns"] == 0
    assert any("1 x unknown turns of 2 kernels" in line for line in launches.lines(counts))


def test_products_and_a_causal_attention_are_counted() -> None:
    text = """HloModule m

ENTRY %main (x: bf16[4,8], y: bf16[8,16], q: bf16[1,32,4,8], k: bf16[1,64,2,8]) -> bf16[4,16] {
  %x = bf16[4,8]{1,0} parameter(0)
  %y = bf16[8,16]{1,0} parameter(1)
  %q = bf16[1,32,4,8]{3,2,1,0} parameter(2)
  %k = bf16[1,64,2,8]{3,2,1,0} parameter(3)
  %a = (bf16[1,4,32,8]{3,1,2,0}, f32[1,4,32]{2,1,0}, u8[0]{0}) custom-call(%q, %k, %k), CALL
  ROOT %d = bf16[4,16]{1,0} dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
    call = 'custom_call_target="__cudnn$fmhaSoftmax", backend_config={"fmha": {"mask_type": "CAUSAL"}}'
    scores, product = 2 * 4 * 32 * 64 * 8, 2 * 4 * 8 * 16
    counted = {
        call: product + 2 * scores // 2,
        call.replace("CAUSAL", "NO_MASK"): product + 2 * scores,
        call.replace("Softmax", "SoftmaxBackward"): product + 5 * scores // 2,
    }
    for one, flops in counted.items():
        assert hlo.matrix_flops(hlo.Program(text.replace("CALL", one))) == flops
