"""Jobs in Django, under ASGI: POST /jobs begins one, and answers with the URL of its progress."""

from __future__ import annotations

import asyncio
import os

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

from examples.jobs.work import begin, work

settings.configure(
    ALLOWED_HOSTS=["localhost", "127.0.0.1"],
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ.get("DJANGO_SECRET_KEY", os.urandom(32).hex()),
)
running: set[asyncio.Task[None]] = set()  # asyncio itself does not hold them


async def begin_job(request: HttpRequest) -> JsonResponse:
    """Begin a job, which goes on after the answer."""
    if request.method != "POST":
        return JsonResponse({"error": "POST begins a job"}, status=405)
    name, url = await begin()
    task = asyncio.create_task(work(name))
    running.add(task)
    task.add_done_callback(running.discard)
    return JsonResponse({"progress": url}, status=202)


urlpatterns = [path("jobs", begin_job)]
app = get_asgi_application()
