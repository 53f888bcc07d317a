"""A deployment's monthly budget."""

from __future__ import annotations

from aws_cdk import aws_budgets as budgets
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.config import DeploymentConfig
from stacks.config.deployment_tag import DEPLOYMENT_TAG
from stacks.config.slots import slots_of


def monthly_budget(scope: Construct, config: DeploymentConfig, topic: sns.ITopic) -> budgets.CfnBudget | None:
    """Return the budget, or None if the deployment file does not configure one.

    The budget does not have a fixed name because editing its notifications replaces it, and budget names must be
    unique.
    Source (2026-11):
    https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-budgets-budget.html
    """
    monthly_usd = config.budget.monthly_usd
    if monthly_usd is None:
        return None
    budget = budgets.CfnBudget(
        scope,
        "Budget",
        budget=budgets.CfnBudget.BudgetDataProperty(
            budget_type="COST",
            time_unit="MONTHLY",
            budget_limit=budgets.CfnBudget.SpendProperty(amount=monthly_usd, unit="USD"),
            cost_filters={"TagKeyValue": [f"user:{DEPLOYMENT_TAG}${slot.config.name}" for slot in slots_of(config)]},
        ),
        notifications_with_subscribers=[
            budgets.CfnBudget.NotificationWithSubscribersProperty(
                notification=budgets.CfnBudget.NotificationProperty(
                    comparison_operator="GREATER_THAN",
                    notification_type="ACTUAL",
                    threshold=percent,
                    threshold_type="PERCENTAGE",
                ),
                subscribers=[budgets.CfnBudget.SubscriberProperty(address=topic.topic_arn, subscription_type="SNS")],
            )
            for percent in sorted(set(config.budget.warn_at_percent))
        ],
    )
    budget.node.add_dependency(topic)  # AWS Budgets checks the topic's policy when it creates the budget
    return budget
