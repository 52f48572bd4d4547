"""Build hook: compiles the optional kernels, or leaves their pure-Python twins to do the work; builds Spark's catalog.

Every ``.pyx`` under a source root is a kernel. An editable build puts the compiled file beside its source; a wheel takes
it from a scratch folder, so that nothing left in the tree can slip into a wheel. A kernel that does not compile, for
want of a compiler for example, is left out with a warning. So is the jar with Spark's catalog where Maven is missing; only
wheels get it, and `mvn -f plugins/spark/jvm package` makes it for a checkout.

Environment:
    STRATALOG_NO_EXTENSIONS: set to leave all kernels out.
    STRATALOG_NO_JAR: set to leave the jar out.
    STRATALOG_KERNEL_FLAGS: further flags for compiler and linker, such as ``-fsanitize=address``.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH: Final = "STRATALOG_NO_EXTENSIONS"
NO_JAR: Final = "STRATALOG_NO_JAR"
FLAGS: Final = "STRATALOG_KERNEL_FLAGS"
JVM_SOURCES: Final = "plugins/spark/jvm"
JAR: Final = "stratalog_spark/jars/stratalog-spark.jar"
JAR_SECONDS: Final = 600
COMPILED_SUFFIXES: Final = (".so", ".pyd")


class KernelBuildHook(BuildHookInterface[Any]):
    """Compiles the kernels with Cython, each build in a scratch folder of its own: several may run at once."""

    _scratch: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add what compiled to ``build_data``; ``version`` is "standard" or "editable"."""
        if sys.version_info < (3, 11):  # noqa: UP036 - pip builds the wheel before it checks requires-python
            return  # pip then refuses this Python within seconds
        root = Path(self.root)
        sources = kernel_sources(root, self.build_config.builder.config.dev_mode_dirs)
        built = {}
        if not os.environ.get(SWITCH):
            self._scratch = Path(tempfile.mkdtemp(prefix="stratalog-kernels-"))
            built = compile_kernels(root, sources, self._scratch)
        if version == "editable":
            remove_compiled(root, sources)
        for module, path in built.items():
            if version == "editable":
                target = (root / sources[module]).with_name(path.name)
                shutil.copy2(path, target.with_suffix(".new"))
                target.with_suffix(".new").replace(target)  # a process that uses the old kernel keeps it
            else:
                build_data["force_include"][str(path)] = str(Path(*module.split(".")[:-1]) / path.name)
        if version != "editable" and not os.environ.get(NO_JAR):
            self._add_jar(root, build_data)
        if built:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
        for module in sorted(() if os.environ.get(SWITCH) else sources.keys() - built.keys()):
            self.app.display_warning(f"{module} did not compile: its pure-Python twin does the work")

    def _add_jar(self, root: Path, build_data: dict[str, Any]) -> None:
        self._scratch = self._scratch or Path(tempfile.mkdtemp(prefix="stratalog-kernels-"))
        jar, reason = build_jar(root, self._scratch)
        if jar is None:
            self.app.display_warning(f"the wheel has no jar with Spark's catalog: {reason}")
        else:
            build_data["force_include"][str(jar)] = JAR

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the scratch folder: what was compiled is in the artifact, or beside its source."""
        del version, build_data, artifact_path
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def kernel_sources(root: Path, source_roots: list[str]) -> dict[str, str]:
    """Return the path of each kernel's source, relative to ``root``, by the name of its module."""
    found = {}
    for folder in source_roots:
        for path in sorted((root / folder).rglob("*.pyx")):
            module = ".".join(path.relative_to(root / folder).with_suffix("").parts)
            found[module] = path.relative_to(root).as_posix()
    return found


def remove_compiled(root: Path, sources: dict[str, str]) -> None:
    """Delete what an earlier editable build left beside the sources."""
    for source in sources.values():
        path = root / source
        for stale in path.parent.glob(f"{path.stem}.*"):
            if stale.suffix in COMPILED_SUFFIXES:
                stale.unlink()


def build_jar(root: Path, scratch: Path) -> tuple[Path | None, str]:
    """Return the jar with Spark's catalog, built by Maven in ``scratch``; or None and the reason why there is none."""
    maven = shutil.which("mvn")
    if maven is None:
        return None, "Maven is not installed"
    if not (root / JVM_SOURCES).is_dir():
        return None, f"{JVM_SOURCES} is missing"
    command = [maven, "-q", "-B", "-f", str(root / JVM_SOURCES), "package"]
    command += [f"-Dbuild.folder={scratch / 'jvm'}", f"-Djar.folder={scratch}"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=JAR_SECONDS, check=False)  # noqa: S603 - Maven
    except subprocess.TimeoutExpired:
        return None, f"Maven took more than {JAR_SECONDS} seconds"
    jar = scratch / Path(JAR).name
    return (jar, "") if ran.returncode == 0 and jar.exists() else (None, f"Maven failed: {ran.stdout[-500:]}")


def compile_kernels(root: Path, sources: dict[str, str], scratch: Path) -> dict[str, Path]:
    """Return the compiled file of each kernel that did compile, by the name of its module."""
    from Cython.Build import cythonize  # noqa: PLC0415 - a wheel without kernels must build without Cython
    from setuptools import Distribution, Extension  # noqa: PLC0415 - as the import above

    more = shlex.split(os.environ.get(FLAGS, ""))
    optimise = ["/O2"] if sys.platform == "win32" else ["-O3", "-g0"]  # debug symbols take a third of the time
    processes = os.cpu_count() or 1
    before = Path.cwd()
    os.chdir(root)  # with absolute paths, Cython writes to unexpected folders under build_dir
    try:
        extensions = cythonize(  # type: ignore[no-untyped-call]  # published without types
            [
                Extension(
                    module,
                    [source],
                    include_dirs=[str((root / source).parent)],
                    extra_compile_args=[*optimise, *more],
                    extra_link_args=more,
                )
                for module, source in sources.items()
            ],
            build_dir=str(scratch / "c"),
            include_path=sorted(
                {str(root / source).removesuffix(_below_root(module)) for module, source in sources.items()}
            ),
            language_level=3,
            nthreads=processes,
            quiet=True,
        )
        for extension in extensions:
            extension.optional = True  # cythonize() drops optional=True of its input
        command = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib = str(scratch / "lib")
        command.build_temp = str(scratch / "tmp")
        command.parallel = processes
        command.ensure_finalized()
        command.run()
        files = {found.name: scratch / "lib" / command.get_ext_filename(found.name) for found in extensions}
    finally:
        os.chdir(before)
    return {name: path for name, path in files.items() if path.exists()}


def _below_root(module: str) -> str:
    """Return the part of a kernel's path after its source root."""
    return "/" + module.replace(".", "/") + ".pyx"
