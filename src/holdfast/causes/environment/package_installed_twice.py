"""ENV016 package-installed-twice."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

PACKAGE_INSTALLED_TWICE = Cause(
    code="ENV016",
    name="package-installed-twice",
    summary="Two versions of a package are on the path, and the order of sys.path decides which "
    "one is imported.",
    what_happens="A user's site-packages, a PYTHONPATH or a system folder contains another version "
    "of a package than the environment. Python imports the first on sys.path; a launcher, a shell "
    "and a batch system can have different orders, so ranks of one job import different code.",
    shows_before="The same distribution with two versions in folders of sys.path; PYTHONPATH set "
    "in a profile; `pip install --user` next to a container's packages.",
    shows_during="Usually nothing; or one host behaves differently with the same image.",
    shows_after="ImportError or AttributeError for names that the installed version does have, or "
    "different results on one host.",
    known_misses="Folders that a program adds to sys.path later are not seen, nor is a file "
    "beside the script that hides a package.",
    evidence_sources=(EvidenceSource.HOST,),
    remedies=(
        automatic(
            "Show which version is imported.",
            "python -c \"import sys; print(*sys.path, sep='\\n')\"; python -m pip list --verbose",
        ),
        disruptive(
            "Exclude the user's packages and PYTHONPATH from jobs.",
            "export PYTHONNOUSERSITE=1; unset PYTHONPATH",
        ),
    ),
    sources=("Python: site, sys.path and PYTHONNOUSERSITE",),
)
