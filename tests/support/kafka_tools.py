"""The jars of real Kafka, from Maven, and Kafka's dump tool, which checks segment files."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dump_parser import parse_dump

JAVA_MAJOR: Final = 17
_FETCH_S: Final = 1200  # 200 MB, on a slow line
DUMPED_SUFFIXES: Final = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


class OracleMissingError(Exception):
    """Real Kafka is not available; the text says which program is missing."""


@dataclass(frozen=True, slots=True)
class KafkaTools:
    """Kafka's jars and the Java to run them with.

    Attributes:
        libraries: the folder of the jars.
        java: path of the program.
        class_archive: the file with the loaded classes of a broker, if a broker has written the file. With this file,
            a broker starts with 40 % less processor time.
    """

    libraries: Path
    java: str
    class_archive: Path

    @classmethod
    def find(cls, pom: Path) -> KafkaTools:
        """Return Java and the jars that ``pom`` lists. The jars are in a cache folder; Maven downloads them if needed.

        Raises:
            OracleMissingError: Java 17 or newer is missing, or the cache is empty and Maven is missing.
        """
        java = shutil.which("java")
        if java is None:
            raise OracleMissingError(f"there is no Java; version {JAVA_MAJOR} or newer is needed")
        banner = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
        version = re.search(r'version "(\d+)', banner)
        if version is None or int(version[1]) < JAVA_MAJOR:
            raise OracleMissingError(f"Java is too old, {JAVA_MAJOR} or newer is needed: {banner.strip()}")
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratalog-oracle"
        libraries = cache / hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
        if not libraries.is_dir():
            _fetch_libraries(pom, libraries)
        # other versions of Java, or other jars, cannot use the archive
        java_hash = hashlib.sha256(banner.encode()).hexdigest()[:16]
        return cls(libraries, java, libraries / f"{java_hash}.jsa")

    def command(self, main: str, *arguments: str) -> list[str]:
        """Return the command line that runs the class ``main``."""
        quick = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        # these classes log that the broker has started
        started = ("kafka.server.KafkaRaftServer", "kafka.server.KafkaServer")
        logging = ["defaultLogLevel=warn", *(f"log.{name}=info" for name in started)]
        options = [*quick, *(f"-Dorg.slf4j.simpleLogger.{setting}" for setting in logging)]
        if self.class_archive.exists():
            # without log lines, because some tests read the output
            options += [f"-XX:SharedArchiveFile={self.class_archive}", "-Xlog:cds*=off"]
        return [self.java, *options, "-cp", f"{self.libraries}/*", main, *arguments]

    def run(self, main: str, *arguments: str, folder: Path, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run the class ``main`` in ``folder`` to its end, with ``given`` as its standard input.

        ``stdout`` of the result has both standard output and standard error.
        """
        return subprocess.run(
            self.command(main, *arguments),
            cwd=folder,
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def complaints(self, directory: Path) -> list[str]:
        """Return DumpLogSegments' complaints about the segment files of all logs in ``directory``, or [].

        The tool checks the CRC of each batch, iterates over all records, and compares each index with its log. Its
        sanity check of an index is the check that a broker makes.
        """
        files = sorted(
            str(file.relative_to(directory)) for file in directory.glob("*/*") if file.suffix in DUMPED_SUFFIXES
        )
        assert files, f"nothing to dump in {directory}"
        complaints = []
        for mode, dumped_files in (
            ("--deep-iteration", files),
            ("--index-sanity-check", [file for file in files if file.endswith("index")]),
        ):
            result = self.run("kafka.tools.DumpLogSegments", mode, "--files", ",".join(dumped_files), folder=directory)
            dump = parse_dump(result.stdout)
            complaints += [*dump.remarks, *re.findall(r".*isvalid: false.*", result.stdout, re.IGNORECASE)]
            complaints += [f"not dumped: {file}" for file in dumped_files if file not in dump.files]
            if result.returncode:
                complaints.append(f"exit code {result.returncode}")
        return complaints


def _fetch_libraries(pom: Path, libraries: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise OracleMissingError("there is no Maven (mvn) to fetch Kafka's jars with")
    libraries.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=libraries.parent) as scratch:
        shutil.copy(pom, Path(scratch, "pom.xml"))
        jars = Path(scratch, "jars")
        command = [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        try:
            result = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=_FETCH_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OracleMissingError(f"Maven could not fetch Kafka's jars: {error}") from error
        if result.returncode:
            raise OracleMissingError(f"Maven could not fetch Kafka's jars: {(result.stdout + result.stderr)[-2000:]}")
        try:
            jars.rename(libraries)  # whole or not at all
        except OSError:
            if not libraries.is_dir():  # otherwise another test process was faster
                raise
