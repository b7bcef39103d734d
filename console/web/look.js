// The console's own script: theme, ages and countdowns, keyboard, and what must survive a live update. No dependency.
(() => {
  const root = document.documentElement;
  const themes = ["auto", "light", "dark"];
  const preference = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => { try { return localStorage.getItem("theme") || "auto"; } catch { return "auto"; } };
  // Only what differs is written: the observer below must not hear of its own work.
  const put = (each, text) => { if (each.textContent !== text) each.textContent = text; };
  const paint = () => {
    const theme = chosen();
    root.dataset.theme = theme === "auto" ? (preference.matches ? "dark" : "light") : theme;
    for (const each of document.querySelectorAll("[data-theme-button]")) put(each, `Theme: ${theme}`);
  };
  preference.addEventListener("change", paint);
  paint();

  // Ages tick here, by the server's clock: a wrong clock on the desk must not make an approval look open or expired.
  let skew = 0;
  const span = (seconds) => {
    const s = Math.max(0, seconds);
    if (s < 180) return `${s.toFixed(0)} s`;
    if (s < 5400) return `${(s / 60).toFixed(0)} min`;
    if (s < 172800) return s < 36000 ? `${(s / 3600).toFixed(1)} h` : `${(s / 3600).toFixed(0)} h`;
    return `${(s / 86400).toFixed(0)} d`;
  };
  const clock = (seconds) => {
    const s = Math.max(0, Math.floor(seconds));
    const two = (n) => String(n).padStart(2, "0");
    return s >= 3600 ? `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}` : `${two(Math.floor(s / 60))}:${two(s % 60)}`;
  };
  const tick = () => {
    const told = document.querySelector("[data-now]");
    if (told && told.dataset.seen !== told.dataset.now) {
      skew = Date.parse(told.dataset.now) - Date.now();
      told.dataset.seen = told.dataset.now;
    }
    const now = Date.now() + skew;
    for (const each of document.querySelectorAll("time[data-ago]")) put(each, `${span((now - Date.parse(each.dataset.ago)) / 1000)} ago`);
    for (const each of document.querySelectorAll("time[data-for]")) put(each, span((now - Date.parse(each.dataset.for)) / 1000));
    for (const each of document.querySelectorAll("time[data-until]")) {
      const left = (Date.parse(each.dataset.until) - now) / 1000;
      put(each, left > 0 ? `${clock(left)} left` : "time is up");
    }
    for (const each of document.querySelectorAll("time[data-local]")) {
      const at = new Date(each.dataset.local);
      const here = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
      if (each.title !== here) each.title = here;
    }
  };
  setInterval(tick, 1000);

  // A live update replaces a block's inside: what was open stays open, what had the focus has it again.
  const open = new Map();
  const typed = new Map();
  let focused = "";
  document.addEventListener("input", (event) => { if (event.target.id) typed.set(event.target.id, event.target.value); });
  document.addEventListener("toggle", (event) => { if (event.target.id) open.set(event.target.id, event.target.open); }, true);
  document.addEventListener("focusin", (event) => { focused = event.target.id || ""; });
  const restore = () => {
    for (const [id, is] of open) {
      const each = document.getElementById(id);
      if (each && each.open !== is) each.open = is;
    }
    for (const [id, value] of typed) {
      const each = document.getElementById(id);
      if (each && each !== document.activeElement && each.value !== value) each.value = value;
    }
    if (focused && document.activeElement === document.body) document.getElementById(focused)?.focus({ preventScroll: true });
    paint();
    tick();
  };
  const watch = () => new MutationObserver(restore).observe(document.getElementById("app"), { childList: true, subtree: true });

  const rows = () => [...document.querySelectorAll("a.go")];
  const move = (by) => {
    const all = rows();
    const at = all.indexOf(document.activeElement);
    all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))]?.focus();
  };
  const go = { n: "/", i: "/incidents", j: "/jobs", o: "/nodes", g: "/goodput", c: "/scorecard", a: "/audit", s: "/settings" };
  const help = (shown) => {
    const keys = document.getElementById("keys");
    if (!keys) return;
    keys.hidden = !shown;
    if (shown) keys.querySelector("button")?.focus();
  };
  let leading = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches("input, textarea, select");
    if (event.key === "Escape") { help(false); if (typing) event.target.blur(); return; }
    if (typing) return;
    if (Date.now() - leading < 1200 && go[event.key]) { location.href = go[event.key]; return; }
    leading = 0;
    if (event.key === "g") leading = Date.now();
    else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "/") { event.preventDefault(); document.querySelector("#main input[type=search], #search")?.focus(); }
    else if (event.key === "?") help(true);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-theme-button], [data-keys]");
    if (!button) { if (event.target.id === "keys") help(false); return; }
    if (button.matches("[data-keys]")) help(button.dataset.keys === "show");
    else {
      try { localStorage.setItem("theme", themes[(themes.indexOf(chosen()) + 1) % 3]); } catch { /* no storage: auto stays */ }
      paint();
    }
  });
  // A word on a plan: the buttons are off until the answer is there, so that a second click sends nothing.
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-send]");
    if (!button || button.disabled) return;
    const box = button.closest(".decide");
    const answer = (text) => {
      let told = box.querySelector(".answer");
      if (!told) { told = document.createElement("div"); told.className = "answer"; told.setAttribute("role", "alert"); box.append(told); }
      told.textContent = text;
    };
    if (!window.socket?.connected) { answer("Nothing sent: the console does not answer. Wait until it is back."); return; }
    const reason = box.querySelector("#reason")?.value ?? "";
    if (button.dataset.send === "reject" && !reason.trim()) { box.querySelector("#reason").focus(); answer("Say why you reject it."); return; }
    for (const each of box.querySelectorAll("[data-send]")) each.disabled = true;
    answer("Sending…");
    window.emitEvent("relight", { word: button.dataset.send, digest: button.dataset.digest ?? "", reason });
  });
  document.addEventListener("change", (event) => { if (event.target.matches("form.filters select")) event.target.form.requestSubmit(); });

  // The server is away: say so on the page that still stands there, and go on when it is back.
  const connection = () => {
    const socket = window.socket;
    const told = document.getElementById("offline");
    if (told) told.hidden = !socket || socket.connected;
  };
  setInterval(connection, 1000);
  document.addEventListener("DOMContentLoaded", watch);
})();
