"""Mutants: does a test fail when the code is broken?

    python -m tests.mutants --count 40 --seed 1 [--package grammar_workers] [--show]

draws places in a package (without annotations and numba kernels), breaks the code at one place at a time in a copy of
the repository, and runs the package's tests until the first failure: the files that name the changed module first, at
most `--seconds` per mutant. Prints a line for each mutant, and how many were killed. Tests that fail on the untouched
code kill every mutant: run `make test` before.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import difflib
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from deployments.shipped import REPOSITORY
from grammar_workers.numba_options import cache

PACKAGES = ("grammar_workers", "gpu_workers", "deployments")
# Decorators of functions that numba compiles: it would compile all kernels again, which takes minutes.
KERNEL = re.compile("njit|compiled_for")
# Kernels, and folders that need environments of their own.
LEFT_OUT = re.compile(r"/kernels/|/device_step/|masked_scores_kernel|/vllm/|/serve_llm/|/sglang/|kernel\.py$")
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
IGNORED = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*_cache", ".hypothesis", "site", "node_modules")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A text in a file that stands in for another."""

    path: str
    begin: int
    """Offset in the file's UTF-8 bytes."""
    old: str
    new: str

    def applied(self, source: bytes) -> bytes:
        assert source[self.begin :].startswith(self.old.encode())
        return source[: self.begin] + self.new.encode() + source[self.begin + len(self.old.encode()) :]

    def told(self, source: bytes) -> str:
        line = source[: self.begin].count(b"\n") + 1
        before, after = (text.decode().splitlines() for text in (source, self.applied(source)))
        changed = [text.strip() for text in difflib.unified_diff(before, after, n=0, lineterm="")][3:]
        return f"{self.path}:{line}  " + "  ->  ".join(text[1:].strip() for text in changed)


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that may stand in for a node."""
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in COMPARED:
            yield ast.Compare(left, [COMPARED[type(operator)]()], [right])
        case ast.BoolOp(ast.And(), values):
            yield ast.BoolOp(ast.Or(), values)
            yield from values
        case ast.BoolOp(ast.Or(), values):
            yield ast.BoolOp(ast.And(), values)
            yield from values
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.BinOp(left, operator, right) if type(operator) in COMPUTED:
            yield ast.BinOp(left, COMPUTED[type(operator)](), right)
        case ast.IfExp(_, body, orelse):
            yield body
            yield orelse
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() as value):
            yield ast.Constant(value + 1)
        case ast.Return(value) if value is not None and not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break():
            yield ast.Pass()


def places(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of function bodies and class fields that decide something; no annotation, message, log line, kernel."""
    for node in ast.iter_child_nodes(tree):
        if node is getattr(tree, "returns", None):
            continue
        match node:
            case ast.FunctionDef() if any(KERNEL.match(ast.unparse(one)) for one in node.decorator_list):
                continue
            case ast.Call(ast.Attribute(ast.Name("logger" | "warnings"))) | ast.JoinedStr():
                continue
            case ast.Expr(ast.Call(ast.Attribute(ast.Name("logger" | "warnings")))) | ast.Expr(ast.Constant()):
                continue
            case ast.Call(ast.Name("Field" | "TypeVar" | "dataclass")) | ast.If(ast.Name("TYPE_CHECKING")):
                continue
            case ast.FunctionDef(name="__repr__") | ast.arg():
                continue
        yield node
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from places(node.value)
            continue
        yield from places(node)


def mutants_of(path: Path) -> list[Mutant]:
    """All mutants of a module."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    tree = ast.parse(source)
    for node in places(tree):
        if not isinstance(node, ast.expr | ast.stmt) or node.end_lineno is None:
            continue
        begin, end = (
            starts[line - 1] + column
            for line, column in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset or 0))
        )
        old = source[begin:end].decode()
        for other in changed(node):
            new = ast.unparse(ast.fix_missing_locations(other))
            expression = isinstance(node, ast.expr) and not isinstance(node, ast.Constant)
            found.append(Mutant(str(path.relative_to(REPOSITORY)), begin, old, f"({new})" if expression else new))
    return found


def drawn(packages: list[str], count: int, seed: int) -> list[Mutant]:
    """`count` mutants, drawn evenly over all places."""
    modules = [path for package in packages for path in sorted((REPOSITORY / package).rglob("*.py"))]
    every = [one for path in modules if not LEFT_OUT.search(str(path)) for one in mutants_of(path)]
    return random.Random(seed).sample(every, min(count, len(every)))


def tests_of(module: str) -> list[list[str]]:
    """The package's test files, in two runs: those that are likely to test the module, then the others.

    The second run is usually not needed, and importing all files takes longer than most tests.
    """
    package, _, rest = module.partition("/")
    dotted = module.removesuffix(".py").replace("/", ".")
    names = (f"{dotted} ", f"{dotted}\n", f"{dotted}.", Path(rest).stem)

    def order(path: Path) -> tuple[int, int]:
        text = path.read_text()
        named = next((place for place, name in enumerate(names) if name in text), len(names))
        return (0 if Path(rest).stem in path.stem else 1, named)

    folder = REPOSITORY / "tests" / package
    files = sorted(folder.rglob("test_*.py"), key=order)
    first = [path for path in files if order(path) < (1, len(names) - 1)] or files[:6]
    runs = first, [path for path in files if path not in first]
    return [[str(path.relative_to(REPOSITORY)) for path in run] for run in runs if run]


def reuse_kernels(copy: Path, module: str) -> None:
    """Let a mutant use the kernels of the unchanged code, if its module belongs to their digest."""
    if REPOSITORY / module not in cache.SOURCES:
        return
    code = "from grammar_workers.numba_options import cache; print(cache.kernel_folders()[0])"
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    told = subprocess.run([sys.executable, "-c", code], cwd=copy, env=environment, stdout=subprocess.PIPE, text=True)
    if told.returncode == 0:  # otherwise, the tests fail soon
        folder = Path(told.stdout.strip())
        shutil.copytree(folder.with_name(cache.kernel_folders()[0].name), folder, dirs_exist_ok=True)


def judged(copy: Path, runs: list[list[str]], seconds: float) -> str:
    """Run the tests; return `killed by TEST`, `survived` or `survived until the time was over`."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    left = math.ceil(seconds)
    for files in runs:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *files]
        process = subprocess.Popen(
            command,
            cwd=copy,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        output = None
        # While this process is stopped, the tests in its group are stopped, too: such a pause counts as one second.
        while output is None and left:
            left -= 1
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, _ = process.communicate(timeout=1)
        if output is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "survived until the time was over"
        if process.returncode:
            failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
            return f"killed by {failed[0] if failed else output.splitlines()[-1][:100]}"
    return "survived"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", action="append", choices=PACKAGES, help="default: all three")
    parser.add_argument("--count", type=int, default=40, help="how many mutants (default: 40)")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws others (default: 0)")
    parser.add_argument("--skip", type=int, default=0, help="of the mutants that are drawn, leave out the first ones")
    parser.add_argument("--seconds", type=float, default=180, help="most of one mutant (default: 180)")
    parser.add_argument("--show", action="store_true", help="print the mutants and run nothing")
    options = parser.parse_args()
    mutants = drawn(options.package or list(PACKAGES), options.count, options.seed)[options.skip :]
    if options.show:
        for one in mutants:
            print(one.told((REPOSITORY / one.path).read_bytes()))
        return 0
    killed = 0
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(REPOSITORY, copy, ignore=IGNORED, symlinks=True)
        for number, one in enumerate(mutants, options.skip):
            path = copy / one.path
            source = path.read_bytes()
            began = time.monotonic()
            path.write_bytes(one.applied(source))
            try:
                reuse_kernels(copy, one.path)
                said = judged(copy, tests_of(one.path), options.seconds)
            finally:
                path.write_bytes(source)
            killed += said.startswith("killed")
            print(f"{number} {time.monotonic() - began:.0f} s {one.told(source)}\n    {said}", flush=True)
    print(f"killed {killed} of {len(mutants)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
