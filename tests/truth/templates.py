"""Deploys CDK packages' integration test templates, which their authors deployed on AWS, on the embedded cloud."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import tarfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3

from localcloud.cloud import LocalCloud
from localcloud.cloudformation.providers import registry
from localcloud.iam.identity import ROOT_ACCESS_KEY_ID

VERSION = "1.60.0"
# Package: SHA-512 of its archive, as in the integrity field of https://registry.npmjs.org/@aws-cdk/aws-NAME/1.60.0.
PACKAGES = {
    "cloudwatch": "12LK2Q/BR4HMwm2vBQHjQRyZT00FWGu9TO0wutJ78BYooqM4YpSdkRiNv74HRtG6RLPo9QmUFrUE5IFYpN0O2w==",
    "ec2": "J1a9ffMLBBmUQcNVXFC14T7PU+n70WxGG3KFbapqretaAhPAtDh3bd/rCaLCmwj216f1t5XpH3fpeS7LGGqKuQ==",
    "ecr": "cCBBxbkad2wqqYmmdLE/6bQaYoK6MmPr8KaTA9Ntgm5dxM91Fy0DHZJRGhUZrJgKNSH0gzaW4Nb0fyjIyi9ZUA==",
    "iam": "p4Jm8Ws7ENuFduypLku/eKViWWBk7EXMXYUizqsI2/qIurwfkPJFrUEOBJiG4etr+5tRweTWM8KdK7jC823Ujw==",
    "kms": "BDkcFMya1XjAvfW8D6wFXtSxHrVC1rYwrj8QcY6wKpx6m/QD7WOUOhtoZCsx/tC8lds+aS04luKJp6hgXfn4eA==",
    "lambda-event-sources": "MBSOrxAcjPhCry8z/0ER4bOlMDlgzHAk8N4eXeotRV5SRQnQg+6OK5bTNfC5Le8IAdpx+plWayCPvVGo59IgRg==",
    "lambda": "xI5kG6zMWyYTMVagEzfqBCNe1DNpKegdjHoWFdnBVnxubI63iOARxTQQLuMRE4bZFR3gDprVgGh9auDO3RZ2jw==",
    "logs": "cMtMlq2SLc1vJILrgoUheCotQeHkJPRajz/lP2vvY/vL1Bu5RJsJfNiOO+8ZFN3wNOK+foM1h+LV5dAyl9n7Bw==",
    "s3": "Kl+Lfe+5+5m+PHoE06xNs9rAF0Cy8i4ZI9NBfxnKxLb+5MEiVIwHWK91k8ofsTH7T/s/1Pmrw7TwwipCKhCAvA==",
    "sns-subscriptions": "oqgG8PXIWPdC1B4MZifoWZ3lcfU4kjYOLBYHktn9XwfSy+KnGvl+3E0U37j3JHXrZWd88/nvXJGXszQUp1nHiQ==",
    "sns": "N37Fo8WQTkv9JAmiZeI5gPSuaL1nftNRXOjX6i+WRgx/wpWdnAzdMcRnGy/ValzgVyfk8lF3UkgZWORGHhlHsA==",
    "sqs": "g9FpZ6xrxvSqhvd+QS283XrJwFdDnJMf20Z7Iyx24HTdkTK25sjbAZ5xgjZl57VlDtl1E+ITzbuAvv6jGQTAHQ==",
    "ssm": "AbsyfASy8voakl1nBiJxmSPoTmOKsvWs7NuYb2P4/EzHs/Qo355zFkhPJf8AdSETYXlrISBUsptIVyBWeCxICw==",
}
REFUSED = ("the embedded cloud supports only python3.x runtimes", "properties not emulated")
"""Parts of failure messages for unsupported features. Templates that fail with them are out of scope."""
KNOWN: Mapping[str, str] = {"ec2/integ.import-default-vpc.lit.expected.json": "names a VPC of its authors' account"}
"""Templates in scope that the embedded cloud does not deploy, each with its reason."""
REGION = "us-east-1"
SECONDS = 120.0


def templates(build: Path) -> Counter[str]:
    """Deploy, update and delete each template in scope; print the failures and count the results."""
    folder = build / "templates"
    if not all(_unpack(folder, name, digest) for name, digest in PACKAGES.items()):
        print("templates: skipped, since npm cannot download the packages")
        return Counter({"out of scope": len(PACKAGES), "passed": 1})
    counts: Counter[str] = Counter()
    with_provider = set(registry())
    cloud = LocalCloud(build / "templates-cloud", region=REGION)
    cloud.start()
    try:
        client = boto3.client(
            "cloudformation",
            region_name=REGION,
            endpoint_url=cloud.endpoint_url,
            aws_access_key_id=ROOT_ACCESS_KEY_ID,
            aws_secret_access_key=cloud.identity.root_secret,
        )
        for name, template in _templates(folder):
            if not _in_scope(template, with_provider):
                counts["out of scope"] += 1
                continue
            problem = _problem(client, template)
            if problem is not None and any(words in problem for words in REFUSED):
                counts["out of scope"] += 1
                continue
            is_expected = (problem is not None) == (name in KNOWN)
            counts["out of scope" if is_expected and problem else "passed" if is_expected else "failed"] += 1
            if not is_expected:
                print(f"{name}: {problem or 'now deploys; remove it from KNOWN'}")
    finally:
        cloud.close()
    return counts


def _unpack(folder: Path, name: str, digest: str) -> bool:
    """Download a package's archive, check its digest and unpack its templates."""
    archive = folder / f"aws-cdk-aws-{name}-{VERSION}.tgz"
    folder.mkdir(parents=True, exist_ok=True)
    if not archive.exists():
        print(f"templates: fetching {archive.name}")
        done = subprocess.run(["npm", "pack", "--silent", f"@aws-cdk/aws-{name}@{VERSION}"], cwd=folder)
        if done.returncode != 0:
            return False
    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != digest:
        raise SystemExit(f"{archive}: has SHA-512 {found}, expected {digest}; delete it and run make truth again")
    with tarfile.open(archive) as packed:
        packed.extractall(folder / name, filter="data")
    return True


def _templates(folder: Path) -> Iterator[tuple[str, Any]]:
    for package in PACKAGES:
        for path in sorted((folder / package / "package" / "test").glob("integ*.expected.json")):
            # The templates have placeholders for the region and its zones: test-region and test-region-1a.
            text = path.read_text().replace("test-region-1", REGION).replace("test-region", REGION)
            yield f"{package}/{path.name}", json.loads(text)


def _in_scope(template: Any, with_provider: set[str]) -> bool:
    """Return True if a template is a stack without files, and all of its resource types have providers."""
    if not isinstance(template, dict) or any("Asset" in name for name in template.get("Parameters", {})):
        return False
    types = {resource["Type"] for resource in template.get("Resources", {}).values()}
    return bool(types) and types <= with_provider


def _problem(client: Any, template: Mapping[str, Any]) -> str | None:
    """Deploy a template, deploy it again and delete it; return a description of the first failure, or None."""
    names = {"StackName": "truth"}
    body = json.dumps(template)
    request = {**names, "TemplateBody": body, "Capabilities": ["CAPABILITY_NAMED_IAM"]}
    try:
        stack = client.create_stack(**request)["StackId"]
        status = _settled(client, stack)
        if status != "CREATE_COMPLETE":
            events = client.describe_stack_events(StackName=stack)["StackEvents"]
            reasons = [e.get("ResourceStatusReason") for e in events if e["ResourceStatus"] == "CREATE_FAILED"]
            return f"{status}: {reasons}"
        client.create_change_set(**request, ChangeSetName="second", ChangeSetType="UPDATE")
        second = client.describe_change_set(**names, ChangeSetName="second")
        if second["Changes"]:
            return f"the second change set has changes: {second['Changes']}"
        client.delete_stack(**names)
        status = _settled(client, stack)
        return None if status == "DELETE_COMPLETE" else f"after the deletion: {status}"
    except client.exceptions.ClientError as error:
        return str(error)
    finally:
        client.delete_stack(**names)


def _settled(client: Any, stack: str) -> str:
    """Wait until no operation is running on a stack, and return its status."""
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        status = str(client.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"])
        if not status.endswith("_IN_PROGRESS"):
            return status
        time.sleep(0.05)
    return f"no result after {SECONDS:.0f} s"
