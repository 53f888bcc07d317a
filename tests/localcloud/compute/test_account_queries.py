"""Read-only queries of an account: types, offerings, spot market, quotas, prices, and dry runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError


def refusal(call, **parameters) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def test_instance_types_are_paginated_with_their_data(cloud):
    pages = cloud.ec2.get_paginator("describe_instance_types").paginate(
        Filters=[{"Name": "instance-type", "Values": ["p5*", "g6.*"]}], PaginationConfig={"PageSize": 5}
    )
    shown = [page["InstanceTypes"] for page in pages]
    assert all(len(page) <= 5 for page in shown)
    found = {one["InstanceType"]: one for page in shown for one in page}
    p5 = found["p5.48xlarge"]
    assert (p5["GpuInfo"]["TotalGpuMemoryInMiB"], p5["VCpuInfo"]["DefaultVCpus"]) == (8 * 80 * 1024, 192)
    assert p5["InstanceStorageInfo"]["TotalSizeInGB"] == 30400
    assert (p5["NetworkInfo"]["MaximumNetworkCards"], p5["NetworkInfo"]["EfaInfo"]["MaximumEfaInterfaces"]) == (32, 32)
    assert p5["EbsInfo"]["EbsOptimizedInfo"]["BaselineThroughputInMBps"] == 10000
    assert len(cloud.ec2.describe_instance_types()["InstanceTypes"]) == 100
    assert refusal(cloud.ec2.describe_instance_types, InstanceTypes=["p9.huge"])[0] == "InvalidInstanceType"


def test_offerings_by_zone(cloud):
    answer = cloud.ec2.describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": ["g5.xlarge"]}]
    )
    assert {one["Location"] for one in answer["InstanceTypeOfferings"]} <= {f"eu-west-1{zone}" for zone in "abc"}
    assert answer["InstanceTypeOfferings"]


def test_maximum_price_is_compared_with_the_spot_price(cloud):
    answer = cloud.ec2.describe_spot_price_history(
        InstanceTypes=["g5.2xlarge"], AvailabilityZone="eu-west-1a", ProductDescriptions=["Linux/UNIX"]
    )
    (price,) = [float(one["SpotPrice"]) for one in answer["SpotPriceHistory"]]
    launch = {
        "ImageId": "ami-0123456789abcdef0", "InstanceType": "g5.2xlarge", "MinCount": 1, "MaxCount": 1,
        "SubnetId": cloud.subnets[0], "DryRun": True,
    }  # fmt: skip

    def market(maximum: float) -> dict:
        return {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"MaxPrice": f"{maximum:.6f}"}}}

    assert refusal(cloud.ec2.run_instances, **launch, **market(price * 1.01))[0] == "DryRunOperation"
    assert refusal(cloud.ec2.run_instances, **launch, **market(price * 0.99))[0] == "SpotMaxPriceTooLow"


def test_history_of_prices_begins_with_the_last_change_before_its_start(cloud):
    pool = {"instance_types": ["g6.xlarge"], "zone": "eu-west-1b", "is_available": True}
    changed = []
    for usd_per_hour in (0.3, 0.2, 0.25):
        cloud.advance(3600.0)
        changed.append(int(cloud.now()))
        assert cloud.post("pool", {**pool, "usd_per_hour": usd_per_hour}) == 200
    start = datetime.fromtimestamp(changed[1] + 1800, UTC)
    answer = cloud.ec2.describe_spot_price_history(
        InstanceTypes=["g6.xlarge"], AvailabilityZone="eu-west-1b", ProductDescriptions=["Linux/UNIX"], StartTime=start
    )
    found = [(one["Timestamp"].timestamp(), float(one["SpotPrice"])) for one in answer["SpotPriceHistory"]]
    assert [usd for _, usd in found] == [0.25, 0.2]
    assert all(0.0 <= at - since < 2.0 for (at, _), since in zip(found, reversed(changed[1:]), strict=True))


def test_placement_scores_follow_the_capacity(cloud):
    names = ["g6e.xlarge", "g6e.2xlarge", "g6e.4xlarge"]
    wanted = {"InstanceTypes": names, "TargetCapacity": 4, "SingleAvailabilityZone": True}

    def scores(**more) -> list[int]:
        answer = cloud.ec2.get_spot_placement_scores(**wanted | more)
        return [one["Score"] for one in answer["SpotPlacementScores"]]

    assert scores() == [9, 9, 9]
    for name in names:
        cloud.post("capacity", {"instance_type": name, "zone": "eu-west-1a", "available": 0})
    assert scores() == [9, 9, 1]
    assert scores(InstanceTypes=names[:1], SingleAvailabilityZone=False) == [3]


def test_quotas_can_be_lowered(cloud):
    quotas = cloud.client("service-quotas")
    for code in ("L-417A185B", "L-7212CCBC", "L-DB2E81BA", "L-3819A6DF"):
        assert quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]["QuotaCode"] == code
    assert cloud.control("service-quotas/quota", {"quota_code": "L-417A185B", "value": 96})[0] == 200
    assert quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-417A185B")["Quota"]["Value"] == 96.0
    assert refusal(quotas.get_service_quota, ServiceCode="ec2", QuotaCode="L-0")[0] == "NoSuchResourceException"


def test_prices_are_products_with_terms(cloud):
    pricing = cloud.client("pricing")

    def wanted(**fields: str) -> list[dict[str, str]]:
        return [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in fields.items()]

    filters = wanted(instanceType="p5.48xlarge", regionCode="us-east-1", operatingSystem="Linux", tenancy="Shared")
    (text,) = pricing.get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
    product = json.loads(text)
    assert product["product"]["attributes"]["gpu"] == "8"
    (term,) = product["terms"]["OnDemand"].values()
    (dimension,) = term["priceDimensions"].values()
    assert float(dimension["pricePerUnit"]["USD"]) > 10
    leases = {one["termAttributes"]["LeaseContractLength"] for one in product["terms"]["Reserved"].values()}
    assert leases == {"1yr", "3yr"}
    first = pricing.get_products(ServiceCode="AmazonEC2", Filters=wanted(regionCode="eu-west-1"))
    second = pricing.get_products(
        ServiceCode="AmazonEC2", Filters=wanted(regionCode="eu-west-1"), NextToken=first["NextToken"], MaxResults=10
    )
    assert (len(first["PriceList"]), len(second["PriceList"])) == (100, 10)
    assert not set(first["PriceList"]) & set(second["PriceList"])
    assert pricing.get_products(ServiceCode="AmazonEC2", Filters=wanted(instanceType="p9.huge"))["PriceList"] == []
