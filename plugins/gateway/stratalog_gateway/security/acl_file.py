"""The file of ACLs (``acls.file``), which CreateAcls and DeleteAcls change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratalog.spi import Clock, Vfs
from stratalog_gateway.security.acls import Acl, Acls, load_acls, save_acls
from stratalog_gateway.security.edited_file import EditedFile


class AclFile(EditedFile[Acls]):
    """The ACLs of a file. See ``EditedFile`` for the arguments and errors. Thread-safe."""

    def __init__(self, path: str, files: Vfs, clock: Clock) -> None:
        super().__init__(path, load_acls, save_acls, files, clock)

    def add(self, acls: Sequence[Acl]) -> None:
        """Add the ACLs that the file does not contain, durably; raise the errors of ``change``."""
        self.change(lambda known: Acls((*known.all, *acls)))

    def remove(self, matches: Callable[[Acl], bool]) -> list[Acl]:
        """Remove the ACLs for which ``matches`` returns True, durably. Return the removed ACLs.

        Raise the errors of ``change``.
        """
        gone: list[Acl] = []

        def without(known: Acls) -> Acls:
            gone.extend(acl for acl in known.all if matches(acl))
            return Acls(acl for acl in known.all if acl not in gone) if gone else known

        self.change(without)
        return gone
