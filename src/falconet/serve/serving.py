"""The recommender that answers now, and how another bundle takes its place while requests go on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from falconet.errors import ConfigError, FalconetError
from falconet.io.artifact import read_manifest
from falconet.progress import note
from falconet.serve.bundle import KIND, load_bundle
from falconet.serve.current import bundle_folder
from falconet.serve.recommender import Recommender

_TOLD = 20  # reloads that are remembered


@dataclass(frozen=True)
class Reload:
    """Another bundle took the place of the one `before`, or was refused: then there is no one `after`."""

    time: float
    before: str
    after: str | None


class Serving:
    """Holds a recommender. A request keeps the one it began with; `reload` puts another in its place, or leaves it."""

    def __init__(
        self,
        recommender: Recommender,
        *,
        alone: bool = True,
        beside: Recommender | None = None,
        loaded: Callable[[], None] | None = None,
    ) -> None:
        """`alone`: no other process answers at the same address. Those that do look into one folder.

        `beside`: of another bundle, to compare its answers; it stays the one it is. `loaded` is called when another
        bundle has taken the place of the one before.
        """
        self._recommender = recommender
        self.alone, self.beside, self._loaded = alone, beside, loaded
        self.reloads: deque[Reload] = deque(maxlen=_TOLD)  # the last ones
        self._reloading = threading.Lock()
        self.since = time.time()

    @property
    def recommender(self) -> Recommender:
        return self._recommender

    def reload(self, folder: str | None = None) -> tuple[str, str]:
        """Load the bundle anew, what is current there, or one beside it; the names of the one before and of the new.

        The new one is checked whole, its probes too, before it answers anything; the old one answers until then. Raises
        ArtifactError for a bundle that is damaged or answers differently here, and the old one goes on.
        """
        with self._reloading:
            before = self._recommender
            path = before.bundle.source
            if folder is not None:
                if Path(folder).name != folder or folder in (".", "..") or "\0" in folder:
                    raise ConfigError(f"`bundle` is {folder!r}", hint="a folder beside the one that is served")
                if not self.alone:
                    raise ConfigError(
                        f"`bundle` is {folder!r}, but several workers serve one folder",
                        hint="put the bundle there: every worker takes it up, in about two seconds",
                    )
                path = before.bundle.path.absolute().parent / folder
            try:
                after = Recommender(load_bundle(path), before.store, before.scenarios, before.stages)
            except FalconetError:
                self.reloads.append(Reload(time.time(), before.bundle.name, None))
                raise
            self._recommender = after
            self.since = time.time()
            self.reloads.append(Reload(self.since, before.bundle.name, after.bundle.name))
            if self._loaded is not None:
                self._loaded()
            return before.bundle.name, after.bundle.name

    @contextmanager
    def watched(self, seconds: float = 2.0) -> Iterator[None]:
        """Within the block, a new bundle in the folder takes the old one's place, in every process that watches."""
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(seconds, over), name="falconet-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch(self, seconds: float, over: threading.Event) -> None:
        refused = ""
        while not over.wait(seconds):
            bundle = self._recommender.bundle
            try:
                found = read_manifest(bundle_folder(bundle.source), KIND).sha256
            except FalconetError:  # it is just being put there
                continue
            if found in (bundle.manifest.sha256, refused):
                continue
            try:
                before, after = self.reload()
                note(f"bundle {after} has taken the place of {before}")
            except FalconetError as error:
                refused = found
                note(f"the new bundle is not served, {bundle.name} goes on: {error}")
