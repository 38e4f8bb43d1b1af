"""A tiny release in every format: the same three ratings and three films."""

from __future__ import annotations

import zipfile
from pathlib import Path

# The accents tell encodings apart.
CSV = {
    "ratings.csv": b"userId,movieId,rating,timestamp\n1,10,4.0,964982703\n1,30,2.5,964982704\n2,10,5.0,1445714994\n",
    "movies.csv": (
        "movieId,title,genres\n"
        '10,"City of Lost Children, The (Cité des enfants perdus, La) (1995)",Adventure|Sci-Fi\n'
        "20,Babylon 5,(no genres listed)\n"
        '30,"The ""Burbs"" (1989) ",Comedy\n'
    ).encode(),
}
README = b"""Summary
=======

Tiny.

Usage License
=============

Neither the University nor anybody can guarantee the correctness.

* The user may not state or imply any endorsement.

Citation
========

Cite it.
"""
MOVIES_DAT = (
    "10::City of Lost Children, The (Cité des enfants perdus, La) (1995)::Adventure|Sci-Fi\n"
    "20::Babylon 5::(no genres listed)\n"
    '30::The "Burbs" (1989) ::Comedy\n'
)
RATINGS_1M = b"1::10::4::964982703\n1::30::2::964982704\n2::10::5::1445714994\n"
RATINGS_10M = b"1::10::4.0::964982703\n1::30::2.5::964982704\n2::10::5::1445714994\n"
U = {
    "u.data": b"1\t10\t4\t964982703\n1\t30\t2\t964982704\n2\t10\t5\t1445714994\n",
    "u.genre": b"unknown|0\nAdventure|1\nComedy|2\nSci-Fi|3\n\n",
    "u.item": (
        "10|City of Lost Children, The (Cité des enfants perdus, La) (1995)|01-Jan-1995||http://x|0|1|0|1\n"
        "20|Babylon 5||||1|0|0|0\n"
        '30|The "Burbs" (1989) |01-Jan-1989|||0|0|1|0\n'
    ).encode("latin-1"),
}
FORMATS: dict[str, dict[str, bytes]] = {
    "csv": CSV,
    "1m": {"ratings.dat": RATINGS_1M, "movies.dat": MOVIES_DAT.encode("latin-1"), "users.dat": b""},
    "10m": {"ratings.dat": RATINGS_10M, "movies.dat": MOVIES_DAT.encode(), "tags.dat": b""},
    "100k": U,
}


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def write_zip(path: Path, files: dict[str, bytes], inner: str = "") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(inner + name, content)
    return path
