import uuid
from typing import Any

import django.db.models.deletion
import django.db.models.expressions
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


def leave_room(apps: Any, schema_editor: Any) -> None:
    """Counter rows are updated all the time: room on their pages lets PostgreSQL do so without touching an index."""
    if schema_editor.connection.vendor == "postgresql":
        table = schema_editor.quote_name(apps.get_model("django_job_batches", "BatchCounter")._meta.db_table)
        schema_editor.execute(f"ALTER TABLE {table} SET (fillfactor = 40)")


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Batch",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False, verbose_name="id"
                    ),
                ),
                ("name", models.CharField(blank=True, max_length=255, verbose_name="name")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("waiting", "waiting"),
                            ("dispatching", "dispatching"),
                            ("queued", "queued"),
                            ("running", "running"),
                            ("succeeded", "succeeded"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                        ],
                        max_length=16,
                        verbose_name="status",
                    ),
                ),
                ("key", models.CharField(blank=True, max_length=255, verbose_name="key")),
                ("active_key", models.CharField(editable=False, max_length=64, null=True, unique=True)),
                ("metadata", models.JSONField(blank=True, default=dict, verbose_name="metadata")),
                ("queue_name", models.CharField(blank=True, max_length=100, verbose_name="queue")),
                ("cancel_reason", models.TextField(blank=True, verbose_name="reason")),
                ("error", models.TextField(blank=True, verbose_name="dispatch error")),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now, verbose_name="created at")),
                ("started_at", models.DateTimeField(blank=True, null=True, verbose_name="started at")),
                ("failed_at", models.DateTimeField(blank=True, null=True, verbose_name="failed at")),
                ("cancelled_at", models.DateTimeField(blank=True, null=True, verbose_name="cancelled at")),
                ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="finished at")),
                (
                    "heartbeat_at",
                    models.DateTimeField(
                        default=django.utils.timezone.now, verbose_name="last sign of the dispatcher at"
                    ),
                ),
                ("run", models.PositiveIntegerField(default=1, verbose_name="run")),
                ("sealed", models.BooleanField(default=False)),
                ("lanes", models.PositiveSmallIntegerField(default=0)),
                ("open_lanes", models.PositiveSmallIntegerField(default=1)),
                ("next_position", models.PositiveBigIntegerField(default=0)),
                ("callbacks", models.PositiveSmallIntegerField(default=0, verbose_name="callbacks")),
                ("open_callbacks", models.PositiveSmallIntegerField(default=0)),
                ("failures", models.PositiveBigIntegerField(default=0)),
                (
                    "allowed_failures",
                    models.PositiveBigIntegerField(blank=True, default=0, null=True, verbose_name="allowed failures"),
                ),
                (
                    "allowed_millionths",
                    models.PositiveBigIntegerField(blank=True, null=True, verbose_name="allowed failures per million"),
                ),
                ("final_counts", models.JSONField(editable=False, null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="created by",
                    ),
                ),
            ],
            options={
                "verbose_name": "batch",
                "verbose_name_plural": "batches",
                "ordering": ("-created_at",),
                "permissions": (("cancel_batch", "Can cancel batch"), ("retry_batch", "Can retry batch")),
                "default_permissions": ("view", "delete"),
            },
        ),
        migrations.CreateModel(
            name="BatchJob",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False, verbose_name="id")),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("item", "item"),
                            ("on_success", "on success"),
                            ("on_failure", "on failure"),
                            ("on_finish", "on finish"),
                        ],
                        default="item",
                        max_length=10,
                        verbose_name="role",
                    ),
                ),
                ("position", models.PositiveBigIntegerField(verbose_name="position")),
                ("chain", models.PositiveBigIntegerField(blank=True, null=True, verbose_name="chain")),
                ("lane", models.PositiveSmallIntegerField(default=0)),
                ("run", models.PositiveIntegerField(default=1)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("blocked", "blocked"),
                            ("held", "held"),
                            ("scheduled", "scheduled"),
                            ("queued", "queued"),
                            ("running", "running"),
                            ("succeeded", "succeeded"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                        ],
                        max_length=10,
                        verbose_name="status",
                    ),
                ),
                ("func", models.CharField(blank=True, max_length=255, verbose_name="function")),
                ("args", models.JSONField(blank=True, default=list, verbose_name="arguments")),
                ("kwargs", models.JSONField(blank=True, default=dict, verbose_name="keyword arguments")),
                ("options", models.JSONField(blank=True, default=dict, verbose_name="options")),
                ("queue_name", models.CharField(blank=True, max_length=100, verbose_name="queue")),
                ("attempts", models.PositiveIntegerField(default=0, verbose_name="attempts")),
                ("max_attempts", models.PositiveIntegerField(default=1, verbose_name="attempts at most")),
                ("losses", models.PositiveSmallIntegerField(default=0, verbose_name="lost attempts")),
                ("deadlocks", models.PositiveIntegerField(default=0, verbose_name="deadlocks survived")),
                ("error_class", models.CharField(blank=True, max_length=255, verbose_name="exception")),
                ("error_message", models.TextField(blank=True, verbose_name="message")),
                ("traceback", models.TextField(blank=True, verbose_name="traceback")),
                ("has_result", models.BooleanField(default=False)),
                ("result", models.JSONField(blank=True, null=True, verbose_name="result")),
                ("worker_name", models.CharField(blank=True, max_length=255, verbose_name="worker")),
                ("scheduled_at", models.DateTimeField(blank=True, null=True, verbose_name="scheduled for")),
                ("enqueued_at", models.DateTimeField(blank=True, null=True, verbose_name="enqueued at")),
                ("started_at", models.DateTimeField(blank=True, null=True, verbose_name="started at")),
                ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="finished at")),
                ("stop_requested_at", models.DateTimeField(blank=True, null=True, verbose_name="stop requested at")),
                (
                    "batch",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="jobs",
                        to="django_job_batches.batch",
                        verbose_name="batch",
                    ),
                ),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "ordering": ("pk",),
                "default_permissions": ("view",),
            },
        ),
        migrations.AddField(
            model_name="batch",
            name="parent_job",
            field=models.OneToOneField(
                blank=True,
                db_constraint=False,
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="nested_batch",
                to="django_job_batches.batchjob",
                verbose_name="job in the parent batch",
            ),
        ),
        migrations.CreateModel(
            name="BatchCounter",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("lane", models.PositiveSmallIntegerField()),
                ("total", models.PositiveBigIntegerField(default=0)),
                ("pending", models.PositiveBigIntegerField(default=0)),
                ("succeeded", models.PositiveBigIntegerField(default=0)),
                ("failed", models.PositiveBigIntegerField(default=0)),
                ("cancelled", models.PositiveBigIntegerField(default=0)),
                ("deadlocks", models.PositiveIntegerField(default=0)),
                (
                    "batch",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="counters",
                        to="django_job_batches.batch",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=("batch", "lane"), name="job_batch_counter_lane"),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "total",
                                django.db.models.expressions.CombinedExpression(
                                    django.db.models.expressions.CombinedExpression(
                                        django.db.models.expressions.CombinedExpression(
                                            models.F("pending"), "+", models.F("succeeded")
                                        ),
                                        "+",
                                        models.F("failed"),
                                    ),
                                    "+",
                                    models.F("cancelled"),
                                ),
                            )
                        ),
                        name="job_batch_counter_adds_up",
                    ),
                ],
            },
        ),
        migrations.AddIndex(
            model_name="batchjob",
            index=models.Index(fields=["batch", "status", "id"], name="job_batch_job_batch_status"),
        ),
        migrations.AddIndex(
            model_name="batchjob",
            index=models.Index(fields=["status", "enqueued_at"], name="job_batch_job_outbox"),
        ),
        migrations.AddConstraint(
            model_name="batchjob",
            constraint=models.UniqueConstraint(fields=("batch", "role", "position"), name="job_batch_job_position"),
        ),
        migrations.AddConstraint(
            model_name="batchjob",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("finished_at__isnull", False), ("status__in", ("succeeded", "failed", "cancelled"))),
                    models.Q(
                        models.Q(("status__in", ("succeeded", "failed", "cancelled")), _negated=True),
                        ("finished_at__isnull", True),
                    ),
                    _connector="OR",
                ),
                name="job_batch_job_end_has_a_time",
            ),
        ),
        migrations.AddConstraint(
            model_name="batchjob",
            constraint=models.CheckConstraint(
                condition=models.Q(("attempts__lte", models.F("max_attempts"))), name="job_batch_job_attempts_bounded"
            ),
        ),
        migrations.AddIndex(
            model_name="batch",
            index=models.Index(fields=["-created_at"], name="job_batch_created"),
        ),
        migrations.AddIndex(
            model_name="batch",
            index=models.Index(fields=["status", "-created_at"], name="job_batch_status"),
        ),
        migrations.AddIndex(
            model_name="batch",
            index=models.Index(fields=["finished_at"], name="job_batch_finished"),
        ),
        migrations.AddIndex(
            model_name="batch",
            index=models.Index(fields=["name"], name="job_batch_name"),
        ),
        migrations.AddIndex(
            model_name="batch",
            index=models.Index(fields=["key"], name="job_batch_key"),
        ),
        migrations.AddConstraint(
            model_name="batch",
            constraint=models.CheckConstraint(
                condition=models.Q(("failed_at", None), ("cancelled_at", None), _connector="OR"),
                name="job_batch_one_decision",
            ),
        ),
        migrations.AddConstraint(
            model_name="batch",
            constraint=models.CheckConstraint(
                condition=models.Q(("finished_at", None), ("open_lanes", 0), _connector="OR"),
                name="job_batch_finished_is_empty",
            ),
        ),
        migrations.AddConstraint(
            model_name="batch",
            constraint=models.CheckConstraint(
                condition=models.Q(("finished_at", None), ("active_key", None), _connector="OR"),
                name="job_batch_finished_frees_key",
            ),
        ),
        migrations.AddConstraint(
            model_name="batch",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("status", "succeeded"), _negated=True), ("finished_at__isnull", False), _connector="OR"
                ),
                name="job_batch_success_is_an_end",
            ),
        ),
        migrations.RunPython(leave_room, migrations.RunPython.noop, elidable=False),
    ]
