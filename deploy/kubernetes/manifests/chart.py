"""A Helm chart of the same objects: each overlay is a profile, whose images, replicas and settings are values."""

from __future__ import annotations

import re
from typing import Final

import yaml

from manifests.documents import NOTE, Object, text
from manifests.services import OBJECTS, SETTINGS, VERSION

_VALUES: Final = f"""# Which objects: base, or one of the overlays of deploy/kubernetes.
profile: base
# Before the names of our images, with a slash at its end.
registry: ""
tag: {VERSION}
# Replicas by the name of a Deployment, in place of the profile's.
replicas: {{}}
# Variables of every service, and those that say where object storage is, e.g. AWS_ENDPOINT_URL.
settings: {{}}
objects: {{}}
"""
_TEMPLATE: Final = """{{- $objects := .Files.Get (printf "profiles/%s.yaml" .Values.profile) -}}
{{- if not $objects -}}{{- fail (printf "there is no profile %s; set profile to PROFILES" .Values.profile) -}}{{- end -}}
{{ tpl $objects . }}
"""


def chart(profiles: dict[str, list[Object]]) -> dict[str, str]:
    """Path to content. The namespace is that of the release, and is made beside the secrets."""
    about = {"apiVersion": "v2", "name": "gradbus", "version": VERSION, "appVersion": VERSION}
    about["description"] = "RL post-training of language models as independent services on a message bus"
    files = {
        "Chart.yaml": NOTE + yaml.safe_dump(about, sort_keys=False, width=140),
        "values.yaml": NOTE + _VALUES,
        "templates/objects.yaml": _TEMPLATE.replace("PROFILES", ", ".join(profiles)),
    }
    for name, objects in profiles.items():
        files[f"profiles/{name}.yaml"] = NOTE + "---\n".join(_templated(one) for one in objects if one["kind"] != "Namespace")
    return {f"chart/{name}": content for name, content in files.items()}


def _templated(one: Object) -> str:
    name = one["metadata"]["name"]
    if one["kind"] == "ConfigMap" and name in {SETTINGS, OBJECTS}:
        values = {SETTINGS: "settings", OBJECTS: "objects"}[name]
        given = " ".join(f'"{key}" "{value}"' for key, value in one["data"].items())
        return text([one | {"data": {}}]).replace(
            "data: {}\n", f"data:\n  {{{{- toYaml (mustMergeOverwrite (dict {given}) .Values.{values}) | nindent 2 }}}}\n"
        )
    written = re.sub(rf"image: (gradbus/[\w-]+):{VERSION}\b", r"image: '{{ .Values.registry }}\1:{{ .Values.tag }}'", text([one]))
    if one["kind"] == "Deployment":
        written = re.sub(r"^  replicas: (\d+)$", rf'  replicas: {{{{ dig "{name}" \1 .Values.replicas }}}}', written, flags=re.MULTILINE)
    return written
