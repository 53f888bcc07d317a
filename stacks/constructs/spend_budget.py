"""The monthly budget of a deployment."""

from __future__ import annotations

from aws_cdk import aws_budgets as budgets
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.config import DeploymentConfig


def spend_budget(scope: Construct, config: DeploymentConfig, topic: sns.ITopic) -> budgets.CfnBudget | None:
    """Make the budget, or None where the deployment file has none.

    Without a name: notices cannot be changed in place, so that an edit of them makes another budget before the old one
    goes, and two of one name cannot be. Source (2026-11):
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
            cost_filters={"TagKeyValue": [f"user:trainstack:deployment${config.name}"]},
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
    budget.node.add_dependency(topic)  # Budgets checks at once whether it may publish, which the topic's policy says
    return budget
