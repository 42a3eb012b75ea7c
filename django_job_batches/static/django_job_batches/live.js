// Keeps a list of batches, or the page of one, up to date while it is open: every two seconds while something moves,
// less and less often when nothing does, and not at all in a tab that nobody sees.

const FASTEST = 2000;
const SLOWEST = 30000;
const ROWS_AT_ONCE = 60;

/** Swap the content of `element`, unless the user is selecting text there; what has the focus keeps it. */
function swap(element, html) {
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && element.contains(selection.anchorNode)) {
        return false;
    }
    const opened = [...element.querySelectorAll("details")].map((details) => details.open);
    const focused = element.contains(document.activeElement) ? document.activeElement.outerHTML : null;
    element.innerHTML = html;
    element.querySelectorAll("details").forEach((details, index) => {
        details.open = Boolean(opened[index]);
    });
    if (focused) {
        const same = [...element.querySelectorAll("a, summary, [tabindex]")].find((one) => one.outerHTML === focused);
        same?.focus({ preventScroll: true });
    }
    return true;
}

async function ask(url) {
    const headers = { "X-Requested-With": "XMLHttpRequest" };
    const response = await fetch(url, { headers, credentials: "same-origin" });
    if (response.redirected || response.status === 403 || response.status === 404) {
        throw new Gone();
    }
    if (!response.ok) {
        throw new Error(`status ${response.status}`);
    }
    return response;
}

class Gone extends Error {}

/** The rows of the list, some at a time where there are many. */
class List {
    constructor(element) {
        this.url = element.dataset.liveList;
        this.summary = element.querySelector("[data-live-summary]");
        this.rows = new Map();
        for (const cell of document.querySelectorAll("#result_list [data-live-row]")) {
            this.rows.set(cell.dataset.liveRow, { element: cell.closest("tr"), version: "" });
        }
        this.keys = [...this.rows.keys()];
        this.next = 0;
        this.pulses = new Map();
    }

    async refresh(tell) {
        const keys = this.keys.slice(this.next, this.next + ROWS_AT_ONCE);
        this.next = this.next + ROWS_AT_ONCE < this.keys.length ? this.next + ROWS_AT_ONCE : 0;
        const shown = keys.map((key) => `${key}.${this.rows.get(key).version}`).join(",");
        const answer = await (await ask(`${this.url}?rows=${shown}`)).json();
        if (this.summary.innerHTML.trim() !== answer.summary.trim()) {
            swap(this.summary, answer.summary);
        }
        for (const [key, fresh] of Object.entries(answer.rows)) {
            this.show(this.rows.get(key), fresh, tell);
        }
        const moved = this.pulses.get(keys[0]) !== answer.pulse;
        this.pulses.set(keys[0], answer.pulse);
        return moved || this.next > 0;
    }

    show(row, fresh, tell) {
        const isFirst = row.version === "";
        let isWhole = true;
        for (const [name, html] of Object.entries(fresh.cells)) {
            const cell = row.element.querySelector(`.field-${name}`);
            if (!cell || cell.innerHTML === html) {
                continue;
            }
            const before = cell.textContent;
            isWhole = swap(cell, html) && isWhole;
            if (name === "state" && !isFirst && before !== cell.textContent) {
                tell(`${fresh.name}: ${cell.textContent}`);
            }
        }
        row.version = isWhole ? fresh.version : "";
    }
}

/** The parts of a page: the overview each time, one of the others whenever that has changed. */
class Page {
    constructor(element) {
        this.url = element.dataset.livePage;
        const parts = [...document.querySelectorAll("[data-live-part]")];
        this.overview = parts.find((part) => part.dataset.livePart === "overview");
        this.others = parts.filter((part) => part !== this.overview);
        this.stale = [];
    }

    async refresh(tell) {
        const before = this.overview.querySelector("[data-live-status]")?.textContent;
        const pulse = this.pulse;
        await this.fetch(this.overview);
        const moved = pulse !== this.pulse;
        const after = this.overview.querySelector("[data-live-status]")?.textContent;
        if (before !== after) {
            tell(after);
        }
        if (moved && this.stale.length === 0) {
            this.stale = [...this.others];
        }
        if (this.stale.length > 0) {
            await this.fetch(this.stale.shift());
        }
        return moved || this.stale.length > 0;
    }

    async fetch(part) {
        const query = new URLSearchParams(location.search);
        query.set("version", part.dataset.version);
        const response = await ask(`${this.url.replace(/part\/$/, `${part.dataset.livePart}/`)}?${query}`);
        if (part === this.overview) {
            this.pulse = response.headers.get("X-Pulse");
        }
        if (response.status !== 204 && swap(part, await response.text())) {
            part.dataset.version = response.headers.get("X-Version");
        }
    }
}

/** Asks again and again, and says in what state that is. */
class Pulse {
    constructor(element, subject) {
        this.subject = subject;
        this.state = element.querySelector("[data-live-state]");
        this.news = element.querySelector("[data-live-news]");
        this.pause = FASTEST;
        this.say("live");
        document.addEventListener("visibilitychange", () => this.wake());
        this.plan();
    }

    say(state) {
        this.state.textContent = this.state.dataset[state];
    }

    wake() {
        this.pause = FASTEST;
        if (!document.hidden) {
            this.beat();
        }
    }

    plan() {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.beat(), this.pause);
    }

    async beat() {
        clearTimeout(this.timer);
        if (document.hidden || this.isBusy) {
            return;
        }
        this.isBusy = true;
        try {
            const moved = await this.subject.refresh((text) => {
                this.news.textContent = text;
            });
            this.pause = moved ? FASTEST : Math.min(this.pause * 1.5, SLOWEST);
            this.say("live");
        } catch (error) {
            if (error instanceof Gone) {
                this.say("gone");
                return;
            }
            this.pause = Math.min(this.pause * 2, SLOWEST);
            this.say("lost");
        } finally {
            this.isBusy = false;
        }
        this.plan();
    }
}

for (const element of document.querySelectorAll("[data-live-list]")) {
    new Pulse(element, new List(element));
}
for (const element of document.querySelectorAll("[data-live-page]")) {
    new Pulse(element, new Page(element));
}
