"""Instructions that our attention kernels take for each pair of query and key; needs no GPU.

    python benchmarks/cases/instructions.py --out benchmarks/results/instructions_h200.jsonl

Triton compiles for an H200 wherever it runs; the innermost loops of the disassembly are counted,
times threads, over the pairs of a step. The block-sparse kernels have two, one for masked blocks
and one for whole ones; the way back around a ring has one for each gradient. Fewer are not always
faster: registers and shared memory, which say how many programs run side by side, stand there too.
"""

import argparse
import collections
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from weft.environment import environment
from weft.kernels.block_sparse import kernels as block_sparse_kernels
from weft.kernels.block_sparse import triton as block_sparse
from weft.kernels.launch import Program
from weft.kernels.lsh import kernels as lsh_kernels
from weft.kernels.lsh import triton as lsh_triton
from weft.rows import append

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
LEAST = 60  # instructions of a loop that is worth a row
FLOATS = {"scale", "natural", "natural_scale", "grow"}
LONG = {"length_ptr", "seeds"}
WIDE = {"lse_ptr", "dlse_ptr", "base_ptr", "delta_ptr", "norm_ptr", "value_ptr", "shared_ptr"}
HALF = {"tiles", "x_ptr", "q_ptr", "k_ptr", "v_ptr", "out_ptr", "dout_ptr"}
HALF |= {"dx_ptr", "dq_ptr", "dk_ptr", "dv_ptr"}
INDEX = {"start", "middle", "cols", "tile_of", "row_order", "pick", "query_labels", "key_labels"}
INDEX |= {"seg_col", "seg_first", "seg_middle", "seg_last", "seg_shared", "rows_of"}
INDEX |= {"row_draws", "col_draws", "mark_ptr", "token_ptr", "lo_ptr", "hi_ptr"}
POINTERS = (
    dict.fromkeys(HALF, "*bf16") | dict.fromkeys(WIDE, "*fp32") | dict.fromkeys(INDEX, "*i32")
    | dict.fromkeys(LONG, "*i64")
)  # fmt: skip


def cases(width: int, drops: bool) -> dict[str, tuple[Any, dict[str, Any], tuple[int, ...]]]:
    """Kernel, constants, and (rows, columns per step, warps, stages), as they are launched."""
    plain = {"fold": 1, "group": 1, "EVEN": True, "LABELLED": False, "PICKED": False}
    found = {}
    for block, tuned in block_sparse.TUNING.items():
        own = {**plain, "BLOCK": block, "WIDTH": width, "DROPS": drops}
        kernels = {
            "forward": (block_sparse_kernels.forward_kernel, {"INIT": False}),
            "dq": (block_sparse_kernels.query_gradient_kernel, {"FIRST": True, "HAS_DLSE": False}),
            "dkdv": (block_sparse_kernels.key_gradient_kernel, {"ADD": False}),
        }
        for name, (kernel, more) in kernels.items():
            by = tuned[name][width]
            loop = {"ROWS": by.rows, "STEP": by.step, "UNROLL": by.unroll}
            found[f"block_sparse {name}, {block}"] = kernel, own | more | loop, launched(by)
    ring = {"rounds": 1, "group": 1, "lookback": 1, "RING": True, "BY_PLACE": False}
    ring |= {"HEAD": width, "WIDTH": width, "DROPS": drops}
    pairs = {"forward": lsh_triton.FORWARD, "backward": lsh_triton.BACKWARD}
    for name, tuned in pairs.items():
        by = tuned[width]
        kernel = getattr(lsh_kernels, f"{name}_kernel")
        found[f"ring {name}"] = kernel, {**ring, "M": by.rows, "STEP": by.step}, launched(by)
    return found


def launched(by: Program) -> tuple[int, ...]:
    """Rows, columns between two waits, warps, stages."""
    return by.rows, by.step * by.unroll, by.warps, by.stages


def built(kernel: Any, constants: dict[str, Any], warps: int, stages: int) -> Any:
    """The kernel for an H200; strides and pointers are multiples of 16, as they mostly are."""
    types = {}
    for name in kernel.arg_names:
        number = "fp32" if name in FLOATS else "i64" if name == "threshold" else "i32"
        types[name] = "constexpr" if name in constants else POINTERS.get(name, number)
    even = re.compile(r"[a-z]_[bhn]|extent|kind")
    attributes = {
        (at,): [["tt.divisibility", 16]]
        for at, name in enumerate(kernel.arg_names)
        if name in POINTERS or even.fullmatch(name)
    }
    source = ASTSource(kernel, types, constants, attributes)
    options = {"num_warps": warps, "num_stages": stages}
    return compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def disassembled(made: Any) -> tuple[list[tuple[int, str]], int]:
    """Addresses and instructions, and registers of a thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()

        def asked(what: str) -> str:
            command = [TOOLS / "cuobjdump", what, file.name]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        code, usage = asked("--dump-sass"), asked("--dump-resource-usage")
    lines = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?);", code)
    registers = re.search(r"REG:(\d+)", usage)
    return [(int(at, 16), text) for at, text in lines], int(registers[1]) if registers else 0


def loops(code: list[tuple[int, str]]) -> list[list[str]]:
    """The instructions of every innermost loop, from where a branch goes back to."""
    place = {at: number for number, (at, _) in enumerate(code)}
    found = []
    for number, (at, text) in enumerate(code):
        target = re.search(r"\bBRA\b.*0x([0-9a-f]+)", text)
        if target and int(target[1], 16) < at:
            found.append((place[int(target[1], 16)], number))
    inner = [
        (a, b)
        for a, b in found
        if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in found)
    ]
    return [[text for _, text in code[a : b + 1]] for a, b in inner if b - a >= LEAST]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--widths", default="16,32,64,128", help="of heads")
    args = parser.parse_args()
    stamp = environment("cpu") | {"triton": triton.__version__}
    for width in map(int, args.widths.split(",")):
        for drops in (False, True):
            for name, (kernel, constants, tuned) in cases(width, drops).items():
                rows, step, warps, stages = tuned
                made = built(kernel, constants, warps, stages)
                code, registers = disassembled(made)
                for number, body in enumerate(loops(code)):
                    words = (re.sub(r"^@\S+\s+", "", text) for text in body)
                    kinds = collections.Counter(word.split()[0].split(".")[0] for word in words)
                    most = " ".join(f"{kind}:{count}" for kind, count in kinds.most_common(8))
                    each = len(body) * 32 * warps / (rows * step)
                    row = {
                        "case": name, "width": width, "dropout": drops, "loop": number,
                        "per_pair": round(each, 1), "rows": rows, "step": step, "warps": warps,
                        "stages": stages, "registers": registers, "shared": made.metadata.shared,
                        "kinds": most, **stamp,
                    }  # fmt: skip
                    append(args.out, [row])
                    drop = "dropout" if drops else ""
                    print(f"{name:24s} {width:4d} {drop:8s} loop {number}: {each:5.1f} a pair")


if __name__ == "__main__":
    main()
