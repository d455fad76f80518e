package conformance

import "testing"

func TestSelectors(t *testing.T) {
	type form struct {
		query  string
		status int
		from   source
	}
	table := func(c *collection, param string, forms []form) {
		var rows []row
		for _, f := range forms {
			for _, path := range []string{c.all(), c.in("a")} {
				target := c.expand(path + "?resourceVersion=$N&" + param + "=" + f.query)
				rows = append(rows, row{name: target, request: get(target), status: f.status, from: f.from, open: SomeState(c.now)})
				if path == c.in("a") {
					break // the resource is not namespaced
				}
			}
		}
		check(t, rows)
	}
	table(pods, "labelSelector", []form{
		{"app=web", 200, cache},
		{"app%3D%3Dweb", 200, cache},
		{"app!=web", 200, cache},
		{"app+in+(web,db)", 200, cache},
		{"app%20in%20%28web%2Cdb%29", 200, cache},
		{"app+notin+(web)", 200, cache},
		{"app+notin+(web,)", 200, cache},
		{"app", 200, cache},
		{"!app", 200, cache},
		{"size%3E5", 200, cache},
		{"size+gt+5", 400, upstream},
		{"size%3C10", 200, cache},
		{"size%3E4,size%3C7", 200, cache},
		{"app=web,tier!=front", 200, cache},
		{"app=web,app=db", 200, cache},
		{"empty=", 200, cache},
		{"empty", 200, cache},
		{"tier=", 200, cache},
		{"app+in+()", 200, cache},
		{"app+in+(,web)", 200, cache},
		{"", 200, cache},
		{"+", 200, cache},
		{"example.com/long.key_name=Mixed_Value.1", 200, cache},
		{"example.com/long.key_name=mixed_value.1", 200, cache},
		{"app=web,", 400, upstream},
		{",app=web", 400, upstream},
		{"app=web=x", 400, upstream},
		{"app+in+web", 400, upstream},
		{"app+in+(web", 400, upstream},
		{"size%3Eabc", 400, upstream},
		{"a+b", 400, upstream},
		{"=web", 400, upstream},
		{"app=-x-", 400, upstream},
		{"-app-", 400, upstream},
		{"app=%C3%BC", 400, upstream},
		{"app=%zz", 200, upstream},
		{"app=web%00", 200, cache},
	})
	table(pods, "fieldSelector", []form{
		{"metadata.name=web-1", 200, cache},
		{"metadata.name%3D%3Dweb-1", 200, cache},
		{"metadata.name!=web-1", 200, cache},
		{"metadata.name%3D", 200, cache},
		{"metadata.name!=", 200, cache},
		{"metadata.name=web-1,metadata.name=web-2", 200, cache},
		{"metadata.name=web-1,metadata.name!=web-1", 200, cache},
		{"metadata.name=a/web-1", 200, cache},
		{"metadata.name=..", 200, cache},
		{"metadata.namespace=a", 200, cache},
		{"metadata.namespace=a-b", 200, cache},
		{"metadata.namespace%3D%3Da0", 200, cache},
		{"metadata.namespace!=a", 200, cache},
		{"metadata.namespace=", 200, cache},
		{"metadata.namespace=a,metadata.name=web-1", 200, cache},
		{"metadata.namespace=a-b,metadata.name=web-1", 200, cache},
		{"spec.nodeName=n1", 200, cache},
		{"spec.nodeName%3D%3Dn1", 200, cache},
		{"spec.nodeName!=n1", 200, cache},
		{"spec.nodeName=", 200, cache},
		{"spec.nodeName!=", 200, cache},
		{"spec.nodeName=nobody", 200, cache},
		{"spec.nodeName=n1,spec.nodeName=n2", 200, cache},
		{"spec.nodeName=n1,metadata.name=web-1", 200, cache},
		{"spec.nodeName=n1,metadata.namespace=a", 200, cache},
		{"spec.host=n1", 200, cache},
		{"status.phase=Pending", 200, cache},
		{"status.phase!=Pending", 200, cache},
		{"spec.restartPolicy=Always", 200, cache},
		{"spec.schedulerName=default-scheduler", 200, cache},
		{"spec.hostNetwork=false", 200, cache},
		{"spec.containers=c", 400, upstream},
		{"metadata.labels=x", 400, upstream},
		{"metadata.uid=x", 400, upstream},
		{"metadata.name", 400, upstream},
		{"=x", 400, upstream},
		{"metadata.name=web-1,", 200, cache},
		{",metadata.name=web-1", 200, cache},
		{"metadata.name%3Dweb-1%5C,x", 200, cache},
		{"metadata.name%3Dweb-1%5Cx", 400, upstream},
		{"metadata.name%3Dweb-1%5C%3D1", 200, cache},
		{"metadata.name=web-1=2", 400, upstream},
		{"+metadata.name=web-1", 400, upstream},
		{"metadata.name=+web-1", 200, cache},
		{"metadata.name+in+(web-1)", 400, upstream},
		{"", 200, cache},
	})
	for _, c := range []*collection{configMaps, leases, endpoints, widgets, planets, nodes, namespaces, coreEvents, newEvents} {
		table(c, "fieldSelector", []form{
			{"metadata.name=$NAME", 200, cache},
			{"spec.nodeName=n1", 400, upstream},
		})
	}
	table(widgets, "fieldSelector", []form{
		{"spec.color=red", 200, cache},
		{"spec.color!=red", 200, cache},
		{"spec.size=1", 400, upstream},
	})
	table(widgetsV2, "fieldSelector", []form{{"spec.color=red", 400, upstream}})
	for _, c := range []*collection{nodes, namespaces, planets} {
		table(c, "fieldSelector", []form{{"metadata.namespace=a", 400, upstream}})
	}
	// Built-in resources without their own fields also accept this label, although no object has a
	// value for it.
	table(priorities, "fieldSelector", []form{
		{"metadata.namespace=a", 200, upstream},
		{"metadata.namespace!=a", 200, upstream},
		{"metadata.namespace=", 200, upstream},
		{"metadata.name=system-node-critical", 200, cache},
	})
}
