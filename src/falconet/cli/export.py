"""`falconet export`: models as files that run without falconet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from falconet.errors import ConfigError


def export(
    source: Annotated[
        Path, typer.Argument(help="A bundle, the --out of `falconet run`, or one model's folder.", metavar="FOLDER")
    ],
    torch_export: Annotated[
        Path | None, typer.Option("--torch-export", help="Write programs of torch.export, such as model.pt2.")
    ] = None,
    onnx: Annotated[
        Path | None, typer.Option("--onnx", help="Write ONNX models, such as model.onnx: `falconet[onnx]` is needed.")
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="One program alone, such as `ranker` or `retriever-user`, to exactly that file.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write files anew where they exist.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes.")] = False,
) -> None:
    """Write the ranker and the encoders of users and items as programs, each checked against its model.

    Of several, `model.onnx` becomes `model.ranker.onnx`, `model.retriever-user.onnx`, ... Beside each stand a
    description of its inputs (.json) and an example (.example.safetensors).
    """
    from falconet.models.programs import export_parts
    from falconet.progress import note, set_quiet

    set_quiet(quiet)
    if (torch_export is None) == (onnx is None):
        what = "no file to write is named" if onnx is None else "`export` writes one kind of file at a time"
        raise ConfigError(what, hint="--torch-export FILE.pt2 or --onnx FILE.onnx")
    file = torch_export or onnx
    assert file is not None
    done, refused = export_parts(
        source, file, "onnx" if torch_export is None else "torch.export", part=part, overwrite=overwrite
    )
    for one in done:
        said = f"{one.part.name}, {type(one.part.model).__name__}: largest difference {one.difference:.2g}"
        typer.echo(f"{one.file}  {said} (bound {one.bound:.2g})")
    for name, reason in refused.items():
        note(f"`{name}` was left out: {reason}")
