"""The shape of the source tree: floors, cycles, what runs without torch, sizes, and what never appears.

Each rule is a function from parsed modules to a list of offences, so that it is tested twice: the tree has
none, and a deliberate break has one.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parent.parent
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 70
MAX_KERNEL_LINES = 120
"""A Triton kernel takes every number as an argument, a line each; what it does is as long as a function."""
MAX_KERNEL_BODY_LINES = 60

# Module prefix -> floor. The longest matching prefix counts; imports go down, or stay inside one package.
FLOORS = {
    "kvchat.errors": 0,
    "kvchat.platform": 1,
    "kvchat.starter": 1,
    "kvchat.engine.api": 2,
    "kvchat.engine.kernels": 3,
    "kvchat.engine.cache": 4,
    "kvchat.engine.formats": 4,
    "kvchat.engine.sequences": 4,
    "kvchat.engine.memory": 5,
    "kvchat.engine.models": 5,
    "kvchat.engine.sampling": 5,
    "kvchat.engine.forward": 6,
    "kvchat.engine.scheduling": 6,
    "kvchat.engine.tiering": 6,
    "kvchat.engine": 7,
    "kvchat.engine.startup": 7,
    "kvchat.engine.hf": 8,
    "kvchat.engine.quality": 8,
    "kvchat.session": 8,
    "kvchat.chat": 9,
    "kvchat.text": 10,
    "kvchat.remote": 10,
    "kvchat.serving": 10,
    "kvchat.app": 11,
    "kvchat.ui": 12,
    "kvchat.cli": 13,
    "kvchat.__main__": 14,
    "kvchat": 14,
}
"""Packages by floor: a module imports packages of lower floors, and of its own; modules never form a
cycle."""

# These import where torch and transformers cannot be imported at all.
WITHOUT_TORCH = (
    "kvchat.errors",
    "kvchat.platform",
    "kvchat.engine.api",
    "kvchat.engine.cache",
    "kvchat.engine.sequences",
    "kvchat.engine.sampling.speculative",
    "kvchat.engine.scheduling.admission_backoff",
    "kvchat.engine.scheduling.scheduler",
    "kvchat.engine.tiering.in_flight_loads",
    "kvchat.engine.tiering.load_controller",
    "kvchat.engine.tiering.persisted_rates",
    "kvchat.engine.tiering.prefetcher",
    "kvchat.engine.worker",
    "kvchat.engine.models.locate",
    "kvchat.engine.formats.spec",
    "kvchat.engine.formats.shadow.settings",
    "kvchat.engine.memory.disk.store",
    "kvchat.engine.memory.disk.cache_admin",
    "kvchat.session",
    "kvchat.chat",
    "kvchat.text",
    "kvchat.remote",
    "kvchat.serving",
    "kvchat.app",
    "kvchat.ui",
    "kvchat.cli",
)

# Package -> its modules that others may import: what is behind them is nobody else's concern.
ENTRIES = {"kvchat.session.salvage": ("kvchat.session.salvage.salvage",)}

# Imports of private parts of libraries, by module, and what each buys; a new one needs its measured gain.
# Operations of `torch.ops.mkldnn` (`kernels/linear/packed.py`) are attributes, not imports: they are tried
# before they are used, and without them weights stay as they are.
PRIVATE_IMPORTS = {
    # Peak memory of a forward pass on any device; torch has no public name for its dispatch modes.
    "kvchat.engine.forward.activation_memory": ("torch.utils._python_dispatch",)
}

# `__init__` files that may hold code: the public faces, and the dispatch of one kernel.
TALKING_INITS = ("kvchat", "kvchat.engine", "kvchat.engine.kernels.")

BLOCKER = """
import importlib, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ImportError(name + " must not be imported here")

sys.meta_path.insert(0, NoTorch())
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(f"{name}: {error}")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One parsed source file. `is_package`: it is an `__init__`; `nodes`: all of its tree."""

    name: str
    text: str
    nodes: tuple[ast.AST, ...]
    is_package: bool = False


def parse(name: str, text: str) -> Module:
    is_package = name.endswith(".__init__")
    nodes = tuple(ast.walk(ast.parse(text)))
    return Module(name=name.removesuffix(".__init__"), text=text, nodes=nodes, is_package=is_package)


@cache
def source_modules() -> tuple[Module, ...]:
    """Return every module of the kvchat package, parsed once."""
    paths = sorted((ROOT / "kvchat").rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return tuple(parse(name, path.read_text()) for name, path in zip(names, paths, strict=True))


def own_imports(module: Module, known: set[str]) -> set[str]:
    """Return the kvchat modules that `module` imports anywhere in its text, lazily or for types included."""
    return {target for node in module.nodes for target in _targets(node, known)}


def _targets(node: ast.AST, known: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
    elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            target = inner if inner in known else node.module
            if target in known:
                yield target


def floor_of(name: str) -> int:
    prefix = name
    while prefix not in FLOORS:
        prefix = prefix.rpartition(".")[0]
    return FLOORS[prefix]


def is_below(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def upward_imports(modules: Iterable[Module]) -> list[str]:
    modules = list(modules)
    known = {module.name for module in modules}
    offences = []
    for module in modules:
        floor = floor_of(module.name)
        offences += [
            f"{module.name} (floor {floor}) imports {target} (floor {floor_of(target)})"
            for target in sorted(own_imports(module, known) - {module.name})
            if floor_of(target) > floor
        ]
    return offences


def side_entrances(modules: Iterable[Module]) -> list[str]:
    """Return imports, from outside a package of `ENTRIES`, of another module of it than its entries."""
    modules = list(modules)
    known = {module.name for module in modules}
    return [
        f"{module.name} imports {target}, which is internal to {package}"
        for package, entries in ENTRIES.items()
        for module in modules
        if not is_below(module.name, (package,))
        for target in sorted(own_imports(module, known))
        if is_below(target, (package,)) and target not in entries
    ]


def import_cycles(modules: Iterable[Module]) -> list[str]:
    """Return one line per cycle of imports, found by depth-first search."""
    modules = list(modules)
    known = {module.name for module in modules}
    edges = {module.name: sorted(own_imports(module, known) - {module.name}) for module in modules}
    done: set[str] = set()
    cycles: list[str] = []

    def visit(name: str, trail: list[str]) -> None:
        if name in trail:
            cycles.append(" -> ".join([*trail[trail.index(name) :], name]))
        elif name not in done:
            for target in edges[name]:
                visit(target, [*trail, name])
            done.add(name)

    for name in edges:
        visit(name, [])
    return cycles


def talking_inits(modules: Iterable[Module]) -> list[str]:
    return [
        f"{module.name}/__init__.py is not empty"
        for module in modules
        if module.is_package and module.text.strip() and not _may_talk(module.name)
    ]


def _may_talk(name: str) -> bool:
    return any(
        name == allowed or (allowed.endswith(".") and name.startswith(allowed)) for allowed in TALKING_INITS
    )


def too_long(modules: Iterable[Module]) -> list[str]:
    offences = []
    for module in modules:
        lines = module.text.count("\n")
        if lines > MAX_FILE_LINES:
            offences.append(f"{module.name} has {lines} lines")
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                body = (node.end_lineno or node.lineno) - node.body[0].lineno + 1
                is_kernel = _is_kernel(node)
                if size > (MAX_KERNEL_LINES if is_kernel else MAX_FUNCTION_LINES):
                    offences.append(f"{module.name}.{node.name} has {size} lines")
                elif is_kernel and body > MAX_KERNEL_BODY_LINES:
                    offences.append(f"{module.name}.{node.name} does {body} lines")
    return offences


def _is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(decorator).startswith("triton.jit") for decorator in node.decorator_list)


def forbidden(modules: Iterable[Module]) -> list[str]:
    """Return where code is read from data, remote code is trusted, or a file is a drawer for everything."""
    offences = []
    for module in modules:
        if module.name.rpartition(".")[2] in ("utils", "util", "helpers", "misc", "common"):
            offences.append(f"{module.name}: a file is a noun of the word table")
        offences += [f"{module.name}:{line}: {what}" for line, what in _forbidden_in(module.nodes)]
    return offences


def _forbidden_in(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            )
            roots = {name.partition(".")[0] for name in names}
            for root in sorted(
                roots & {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
            ):
                yield node.lineno, f"imports {root}"
        elif isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                yield node.value.lineno, "trusts remote code"
        elif isinstance(node, ast.Attribute) and node.attr == "load" and ast.unparse(node.value) == "torch":
            yield node.lineno, "torch.load unpickles"


def private_imports(module: Module) -> tuple[str, ...]:
    """Return the private modules and names of libraries that a module imports anywhere in its text."""
    found = {name for node in module.nodes for name in _private_in(node)}
    return tuple(sorted(found))


def _private_in(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if _is_private(alias.name))
    elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        if _is_private(node.module):
            yield node.module
        else:
            full_names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in full_names if _is_private(name))


def _is_private(name: str) -> bool:
    root, *parts = name.split(".")
    return root not in ("kvchat", "__future__") and any(
        part.startswith("_") and not part.endswith("__") for part in (root, *parts)
    )


def imports_torch(names: Iterable[str]) -> str:
    """Import modules in a process in which torch and transformers cannot be, and return what that says."""
    command = [sys.executable, "-c", BLOCKER, *names]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout


def test_imports_go_down_the_floors_or_stay_on_one() -> None:
    assert upward_imports(source_modules()) == []


def test_a_package_with_entries_is_imported_by_these_alone() -> None:
    assert side_entrances(source_modules()) == []


def test_there_is_no_cycle_of_imports() -> None:
    assert import_cycles(source_modules()) == []


def test_bookkeeping_sessions_chat_and_interface_import_where_torch_is_absent() -> None:
    names = [module.name for module in source_modules() if is_below(module.name, WITHOUT_TORCH)]
    assert len(names) > 20
    assert imports_torch(names) == ""


def test_package_inits_are_empty_except_the_public_face_and_the_kernels() -> None:
    assert talking_inits(source_modules()) == []


def test_files_and_functions_stay_short() -> None:
    assert too_long(source_modules()) == []


def test_nothing_unpickles_trusts_remote_code_or_is_a_drawer_for_everything() -> None:
    assert forbidden(source_modules()) == []


def test_libraries_are_imported_by_their_public_names_but_for_listed_exceptions() -> None:
    found = {module.name: private_imports(module) for module in source_modules()}
    assert {name: names for name, names in found.items() if names} == PRIVATE_IMPORTS


# Each rule, seen to fail.


def test_an_import_of_a_higher_floor_is_found() -> None:
    store = parse("kvchat.session.store", "def f():\n    from kvchat.cli import main\n")
    assert upward_imports([store, parse("kvchat.cli.main", "")]) == [
        "kvchat.session.store (floor 8) imports kvchat.cli.main (floor 13)"
    ]


def test_an_import_past_the_entry_of_a_package_is_found() -> None:
    entry = "kvchat.session.salvage.salvage"
    pages = parse("kvchat.session.salvage.log_repair", "")
    modules = [
        parse("kvchat.session.store", "from kvchat.session.salvage.log_repair import repaired"),
        parse("kvchat.session.packs", f"from {entry} import salvage"),
        parse(entry, "from kvchat.session.salvage import log_repair"),
    ]
    assert side_entrances([*modules, pages]) == [
        "kvchat.session.store imports kvchat.session.salvage.log_repair,"
        " which is internal to kvchat.session.salvage"
    ]


def test_a_cycle_is_found() -> None:
    block = parse("kvchat.engine.cache.block", "from kvchat.engine.formats.spec import Spec")
    spec = parse("kvchat.engine.formats.spec", "def f():\n    import kvchat.engine.cache.block")
    cycle = "kvchat.engine.cache.block -> kvchat.engine.formats.spec -> kvchat.engine.cache.block"
    assert import_cycles([block, spec]) == [cycle]


def test_an_import_of_torch_is_found() -> None:
    assert "torch must not be imported here" in imports_torch(["kvchat.errors", "torch"])
    assert "transformers must not be imported here" in imports_torch(["transformers"])


def test_code_in_an_init_is_found() -> None:
    inits = [
        parse("kvchat.session.__init__", "from kvchat.session.store import SessionStore\n"),
        parse("kvchat.engine.kernels.__init__", "x = 1\n"),
        parse("kvchat.engine.__init__", "x = 1\n"),
        parse("kvchat.engine.kernels.rope.__init__", "x = 1\n"),
    ]
    assert talking_inits(inits) == [
        "kvchat.session/__init__.py is not empty",
        "kvchat.engine.kernels/__init__.py is not empty",
    ]


def test_a_long_file_and_a_long_function_are_found() -> None:
    body = "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES
    assert too_long([parse("kvchat.chat.service", body)]) == ["kvchat.chat.service.f has 71 lines"]
    assert too_long([parse("kvchat.chat.service", "x = 1\n" * 601)]) == ["kvchat.chat.service has 601 lines"]
    kernel = "@triton.jit\ndef f(\n" + "".join(f"    a{number},\n" for number in range(50)) + "):\n"
    assert not too_long([parse("kvchat.chat.service", kernel + "    x = 1\n" * MAX_KERNEL_BODY_LINES)])
    long = kernel + "    x = 1\n" * (MAX_KERNEL_BODY_LINES + 1)
    assert too_long([parse("kvchat.chat.service", long)]) == ["kvchat.chat.service.f does 61 lines"]
    long = kernel + "    x = 1\n" * (MAX_KERNEL_LINES - 50)
    assert too_long([parse("kvchat.chat.service", long)]) == ["kvchat.chat.service.f has 122 lines"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kvchat.session.utils", ""),
        ("kvchat.chat.service", "import pickle"),
        ("kvchat.chat.service", "from cloudpickle import dumps"),
        ("kvchat.chat.service", "load(name, trust_remote_code=True)"),
        ("kvchat.chat.service", "load(name, trust_remote_code=settings.trust)"),
        ("kvchat.chat.service", "import torch\nweights = torch.load(path)"),
    ],
)
def test_forbidden_names_are_found(name: str, text: str) -> None:
    assert len(forbidden([parse(name, text)])) == 1


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import torch._dynamo", ("torch._dynamo",)),
        ("def f():\n    from torch.utils import _pytree", ("torch.utils._pytree",)),
        ("from textual._xterm_parser import XTermParser", ("textual._xterm_parser",)),
        ("from typer import _click", ("typer._click",)),
        ("from kvchat.cli._own import f\nfrom numpy import __version__\nimport torch", ()),
    ],
)
def test_an_import_of_a_private_part_of_a_library_is_found(text: str, names: tuple[str, ...]) -> None:
    assert private_imports(parse("kvchat.chat.service", text)) == names
