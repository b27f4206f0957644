"""Checks of the rendered Helm chart, called by scripts/chart.

  chart.py check FILE…                   what the chart promises holds in every rendering
  chart.py schemas OUT BUILTINS CRD      JSON schemas for kubeconform, out of the OpenAPI documents of Kubernetes and a CRD
"""

import json
import os
import sys

import yaml


def only(documents, kind):
    found = [document for document in documents if document["kind"] == kind]
    assert len(found) == 1, f"{len(found)} of {kind}"
    return found[0]


def check(path):
    documents = [document for document in yaml.safe_load_all(open(path)) if document]
    stateful_set = only(documents, "StatefulSet")
    spec = stateful_set["spec"]
    pod = spec["template"]["spec"]
    services = {document["metadata"]["name"]: document["spec"] for document in documents if document["kind"] == "Service"}
    headless = services[spec["serviceName"]]
    assert headless["clusterIP"] == "None" and headless["publishNotReadyAddresses"], "founders find each other before they are ready"
    assert spec["podManagementPolicy"] == "Parallel", "a founder is ready only with the others"
    budget = only(documents, "PodDisruptionBudget")["spec"]
    labels = spec["template"]["metadata"]["labels"]
    for selector in (spec["selector"]["matchLabels"], budget["selector"]["matchLabels"], *(service["selector"] for service in services.values())):
        assert selector.items() <= labels.items(), f"{selector} does not select {labels}"
    assert budget["maxUnavailable"] == 1
    assert "podAntiAffinity" in pod["affinity"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    for container in pod["initContainers"] + pod["containers"]:
        assert "lifecycle" not in container, "nothing may remove a member when a pod stops"
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"] and security["capabilities"] == {"drop": ["ALL"]}
        for entry in container["env"]:
            assert "PASSWORD" not in entry["name"] or entry["name"].endswith("_FILE") or "valueFrom" in entry, f"a secret in clear: {entry['name']}"
    (node,) = pod["containers"]
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= node.keys()
    assert "ordinal + 1" in node["args"][0], "ids come from ordinals"
    for volume in pod["volumes"]:
        assert volume["secret"]["defaultMode"] == 0o440, "a node refuses secrets that everybody may read"
    print(f"chart: {os.path.basename(path)}: {', '.join(sorted(document['kind'] for document in documents))}")


def closed(schema):
    """The schema with references into `definitions`, where no unknown field passes."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items() if not key.startswith("x-kubernetes") and key not in ("default", "format")}
    if isinstance(result.get("$ref"), str):
        result["$ref"] = result["$ref"].replace("#/components/schemas/", "#/definitions/")
    if schema.get("x-kubernetes-int-or-string"):
        result = {"oneOf": [{"type": "integer"}, {"type": "string"}]}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result["additionalProperties"] = False
    return result


def write_schema(out, group, version, kind, schema):
    # As kubeconform names them: the first part of the group, and the version.
    suffix = "-".join(part for part in (group.split(".")[0], version) if part)
    with open(os.path.join(out, f"{kind}-{suffix}.json".lower()), "w") as file:
        json.dump(schema, file)


def schemas(out, builtins, crd):
    os.makedirs(out)
    for folder, _, files in os.walk(builtins):
        for name in files:
            document = json.load(open(os.path.join(folder, name)))
            definitions = closed(document["components"]["schemas"])
            for title, schema in document["components"]["schemas"].items():
                kinds = schema.get("x-kubernetes-group-version-kind") or []
                if len(kinds) == 1:
                    kind = kinds[0]
                    write_schema(out, kind["group"], kind["version"], kind["kind"], {"$ref": f"#/definitions/{title}", "definitions": definitions})
    definition = yaml.safe_load(open(crd))["spec"]
    for version in definition["versions"]:
        schema = closed(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        write_schema(out, definition["group"], version["name"], definition["names"]["kind"], schema)


if sys.argv[1] == "check":
    for each in sys.argv[2:]:
        check(each)
else:
    schemas(*sys.argv[2:])
