"""Jobs in FastAPI: POST /jobs begins one, and answers with the URL of its progress."""

from __future__ import annotations

from fastapi import BackgroundTasks, FastAPI

from examples.jobs.work import begin, work

app = FastAPI()


@app.post("/jobs", status_code=202)
async def begin_job(tasks: BackgroundTasks) -> dict[str, str]:
    """Begin a job, which goes on after the answer."""
    name, url = await begin()
    tasks.add_task(work, name)
    return {"progress": url}
