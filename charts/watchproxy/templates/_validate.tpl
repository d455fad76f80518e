{{/* Checks that the schema cannot express: values that contradict each other. */}}
{{- define "watchproxy.validate" -}}
{{- $v := .Values -}}
{{- $private := include "watchproxy.private" $v.config.listen -}}
{{- include "watchproxy.validateHost" . -}}
{{- if and $private (ne $v.kind "Sidecar") (not $v.hostNetwork) -}}
{{- fail (printf "config.listen: %s can only be reached from within the pod: listen on \":6443\", or let kind be Sidecar" $v.config.listen) -}}
{{- end -}}
{{- if and (include "watchproxy.private" $v.config.adminListen) (ne $v.kind "Sidecar") (not $v.hostNetwork) -}}
{{- fail (printf "config.adminListen: the kubelet's probes cannot reach %s: listen on \":8002\"" $v.config.adminListen) -}}
{{- end -}}
{{- range tuple "listen" "adminListen" -}}
{{- $port := include "watchproxy.port" (get $v.config .) -}}
{{- if and $port (or (lt (int $port) 1) (gt (int $port) 65535)) -}}
{{- fail (printf "config.%s: name a port from 1 to 65535, which the Service and the probes have to know" .) -}}
{{- end -}}
{{- end -}}
{{- if eq (include "watchproxy.port" $v.config.listen) (include "watchproxy.port" $v.config.adminListen) -}}
{{- fail (printf "config.adminListen: %s has the port of config.listen: let it be another one" $v.config.adminListen) -}}
{{- end -}}
{{- if and (ne $v.kind "Sidecar") (or $v.hostNetwork (not $private)) (eq $v.tls.mode "none") (not (hasKey $v.config "tls")) -}}
{{- fail (printf "tls.mode: clients of %s bring credentials, which are only taken over TLS: choose generated, certManager or secret, or name files in config.tls" $v.config.listen) -}}
{{- end -}}
{{- if and (ne $v.tls.mode "none") (not $v.tls.serviceNames) (not $v.tls.dnsNames) -}}
{{- fail "tls.dnsNames: without tls.serviceNames, name what clients reach the proxy by" -}}
{{- end -}}
{{- with $v.service -}}
{{- $outside := has .type (list "NodePort" "LoadBalancer") -}}
{{- range tuple "externalTrafficPolicy" "nodePort" -}}
{{- if and (get $v.service .) (not $outside) -}}
{{- fail (printf "service.%s: a ClusterIP has none: let service.type be NodePort or LoadBalancer, or leave it out" .) -}}
{{- end -}}
{{- end -}}
{{- range tuple "loadBalancerClass" "loadBalancerSourceRanges" -}}
{{- if and (get $v.service .) (ne $v.service.type "LoadBalancer") -}}
{{- fail (printf "service.%s: a %s has no load balancer: let service.type be LoadBalancer, or leave it out" . $v.service.type) -}}
{{- end -}}
{{- end -}}
{{- if and (eq .ipFamilyPolicy "SingleStack") (gt (len .ipFamilies) 1) -}}
{{- fail "service.ipFamilies: SingleStack has one family: name one, or let service.ipFamilyPolicy be PreferDualStack or RequireDualStack" -}}
{{- end -}}
{{- if and (eq .clusterIP "None") $outside -}}
{{- fail (printf "service.clusterIP: a %s needs a cluster IP: leave it out, or let service.type be ClusterIP" .type) -}}
{{- end -}}
{{- end -}}
{{- with $v.tls.certManager -}}
{{- if ge (include "watchproxy.seconds" .renewBefore | float64) (include "watchproxy.seconds" .duration | float64) -}}
{{- fail (printf "tls.certManager.renewBefore: %s must be less than duration, %s" .renewBefore .duration) -}}
{{- end -}}
{{- end -}}
{{- if and (hasKey $v.config "tls") (ne $v.tls.mode "none") -}}
{{- fail (printf "config.tls: the chart sets it for tls.mode %s: set tls.mode to none, or leave it out" $v.tls.mode) -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (ne $v.kind "Deployment") -}}
{{- fail (printf "autoscaling.enabled: a %s is not scaled: let kind be Deployment" $v.kind) -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (not (dig "requests" "cpu" "" $v.resources)) (not (dig "limits" "cpu" "" $v.resources)) -}}
{{- fail "resources.requests.cpu: autoscaling aims at a part of it: request some" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas: must not be more than maxReplicas" -}}
{{- end -}}
{{- if and $v.service.enabled (or $private (eq $v.kind "Sidecar")) -}}
{{- fail "service.enabled: a Sidecar's clients are in its pod: set it to false" -}}
{{- end -}}
{{- if and (eq $v.kind "Sidecar") $v.serviceAccount.create -}}
{{- fail "serviceAccount.create: a Sidecar runs as the application's service account: set it to false and name that one" -}}
{{- end -}}
{{- if and (eq $v.kind "Sidecar") (not $v.serviceAccount.name) -}}
{{- fail "serviceAccount.name: name the application's service account, which a Sidecar runs as" -}}
{{- end -}}
{{- if and (eq $v.kind "Sidecar") (not $private) -}}
{{- fail (printf "config.listen: a Sidecar's clients are in its pod, and others can reach %s: listen on 127.0.0.1:6443" $v.config.listen) -}}
{{- end -}}
{{- if and (eq $v.kind "Sidecar") (or (not (has $v.tls.mode (list "sidecar" "none"))) (hasKey $v.config "tls")) -}}
{{- fail "tls.mode: a Sidecar's clients are in its pod: set it to sidecar, or to none for plain HTTP, and leave config.tls out" -}}
{{- end -}}
{{- if and (ne $v.kind "Sidecar") (eq $v.tls.mode "sidecar") -}}
{{- fail "tls.mode: sidecar is for clients in the same pod: let kind be Sidecar, or choose generated" -}}
{{- end -}}
{{- $named := false -}}
{{- range dig "cache" "resources" list $v.config -}}
{{- if eq .name "secrets" -}}{{- $named = true -}}{{- end -}}
{{- end -}}
{{- $granted := has "secrets" $v.cachedResources -}}
{{- if and $granted (not $named) -}}
{{- fail "cachedResources: secrets are only cached if config.cache.resources names them, too: add them there, or leave them out here" -}}
{{- end -}}
{{- if and $named $v.rbac.create (not (or $granted $v.cacheEverything)) -}}
{{- fail "config.cache.resources: the proxy may not list and watch secrets: add them to cachedResources, too, or leave them out here" -}}
{{- end -}}
{{- range $where, $labels := dict "commonLabels" (default dict $v.commonLabels) "podLabels" (default dict $v.podLabels) -}}
{{- range tuple "app.kubernetes.io/name" "app.kubernetes.io/instance" -}}
{{- if hasKey $labels . -}}
{{- fail (printf "%s: %s selects the pods: leave it out; nameOverride sets the name" $where .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $v.rbac.impersonation.enabled (not $v.rbac.create) -}}
{{- fail "rbac.impersonation.enabled: the chart creates no roles, as rbac.create is false: set it to false, and grant the right yourself" -}}
{{- end -}}
{{- if and $v.flowSchema.enabled (not $v.flowSchema.priorityLevel.create) (not $v.flowSchema.priorityLevel.name) -}}
{{- fail "flowSchema.priorityLevel.name: name one that is there, as create is false" -}}
{{- end -}}
{{- if and $v.monitoring.podMonitor.enabled $v.monitoring.serviceMonitor.enabled -}}
{{- fail "monitoring: each pod would be scraped twice: enable podMonitor or serviceMonitor" -}}
{{- end -}}
{{- if and (eq $v.kind "Sidecar") $v.monitoring.serviceMonitor.enabled -}}
{{- fail "monitoring.serviceMonitor.enabled: there is no Service of a Sidecar: enable podMonitor, with the labels of the application's pods as its podLabels" -}}
{{- end -}}
{{- if and (eq $v.kind "Sidecar") $v.monitoring.podMonitor.enabled (not $v.monitoring.podMonitor.podLabels) -}}
{{- fail "monitoring.podMonitor.podLabels: name labels of the application's pods, which have the Sidecar in them" -}}
{{- end -}}
{{- $admin := default dict $v.config.adminAuthentication -}}
{{- $closed := and (ne (default "" $admin.mode) "none") (not (has "/metrics" (default list $admin.alwaysAllowPaths))) -}}
{{- range $kind := tuple "podMonitor" "serviceMonitor" -}}
{{- $monitor := get $v.monitoring $kind -}}
{{- if and $monitor.enabled (include "watchproxy.private" $v.config.adminListen) -}}
{{- fail (printf "monitoring.%s.enabled: Prometheus cannot reach %s: let config.adminListen be \":8003\", or set it to false" $kind $v.config.adminListen) -}}
{{- end -}}
{{- if and $monitor.enabled $closed (or (ne $monitor.scheme "https") (eq $v.kind "Sidecar")) -}}
{{- fail (printf "monitoring.%s.scheme: /metrics needs credentials, which are only taken over TLS: set scheme to https, with tlsConfig and authorization, or add /metrics to config.adminAuthentication.alwaysAllowPaths" $kind) -}}
{{- end -}}
{{- if and $monitor.enabled (ne $monitor.scheme "https") (or $monitor.tlsConfig $monitor.authorization) -}}
{{- fail (printf "monitoring.%s.scheme: tlsConfig and authorization are for https: set it, or leave them out" $kind) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $v.kind "Sidecar") $v.networkPolicy.enabled -}}
{{- fail "networkPolicy.enabled: the pods of a Sidecar are the application's, and so is their policy: set it to false" -}}
{{- end -}}
{{- include "watchproxy.validatePods" . -}}
{{- include "watchproxy.validateConfig" . -}}
{{- end -}}

{{/* Checks of pods with ports of their nodes. */}}
{{- define "watchproxy.validateHost" -}}
{{- $v := .Values -}}
{{- $port := not (kindIs "invalid" $v.hostPort) -}}
{{- if and (or $v.hostNetwork $port) (ne $v.kind "DaemonSet") -}}
{{- fail (printf "%s: only a DaemonSet has one pod for each node: let kind be DaemonSet, or leave it out" (ternary "hostNetwork" "hostPort" (default false $v.hostNetwork))) -}}
{{- end -}}
{{- if and $v.hostNetwork $port -}}
{{- fail "hostPort: with hostNetwork, config.listen names the port of the node: leave it out" -}}
{{- end -}}
{{- if and $v.hostNetwork (not (include "watchproxy.delegated" .)) -}}
{{- fail (printf "config.authentication.mode: all processes of a node can reach %s: let mode be delegated" $v.config.listen) -}}
{{- end -}}
{{- if and $v.hostNetwork $v.networkPolicy.enabled -}}
{{- fail "networkPolicy.enabled: policies do not apply to pods in the network of their node: set it to false" -}}
{{- end -}}
{{- if and $v.hostNetwork $v.service.enabled (include "watchproxy.private" $v.config.listen) -}}
{{- fail (printf "service.enabled: a Service cannot lead to %s: set it to false, or listen on \":6443\"" $v.config.listen) -}}
{{- end -}}
{{- if and (or $v.hostNetwork $port) (not (regexMatch "^0+%?$" (toString (dig "rollingUpdate" "maxSurge" 0 (default dict $v.updateStrategy))))) -}}
{{- fail "updateStrategy.rollingUpdate.maxSurge: two pods cannot have the same port of a node: set maxUnavailable instead" -}}
{{- end -}}
{{- end -}}

{{/* Checks of config by the rules of ProxyConfiguration's Validate, so that helm reports
    an error before a pod fails to start. */}}
{{- define "watchproxy.validateConfig" -}}
{{- $c := .Values.config -}}
{{- $authentication := default dict $c.authentication -}}
{{- if include "watchproxy.delegated" . -}}
{{- if and (eq .Values.tls.mode "none") (not (hasKey $c "tls")) -}}
{{- fail (printf "config.authentication.mode: clients of %s are authenticated, which takes TLS: name files in config.tls" $c.listen) -}}
{{- end -}}
{{- else -}}
{{- if not (include "watchproxy.private" $c.listen) -}}
{{- fail (printf "config.authentication.mode: others can reach %s: leave it out, and clients are authenticated" $c.listen) -}}
{{- end -}}
{{- if dig "anonymous" "enabled" false $authentication -}}
{{- fail "config.authentication.anonymous.enabled: without authentication everybody is the proxy: leave it out, or let mode be delegated" -}}
{{- end -}}
{{- if dig "x509" "clientCAFile" "" $authentication -}}
{{- fail "config.authentication.x509.clientCAFile: without authentication nobody asks for certificates: leave it out, or let mode be delegated" -}}
{{- end -}}
{{- end -}}
{{- with $c.upstream -}}
{{- if and .contexts (or .context .servers) -}}
{{- fail "config.upstream.contexts: must not be used together with context or servers" -}}
{{- end -}}
{{- end -}}
{{- $seen := list -}}
{{- range dig "cache" "resources" list $c -}}
{{- if has .name $seen -}}
{{- fail (printf "config.cache.resources: %s is there twice" .name) -}}
{{- end -}}
{{- $seen = append $seen .name -}}
{{- end -}}
{{- include "watchproxy.validateViews" $c -}}
{{- include "watchproxy.validateBounds" $c -}}
{{- $limit := dig "limits" "memory" "" (default dict .Values.resources) -}}
{{- if and $c.memoryBudget $limit -}}
{{- if gt (include "watchproxy.bytes" $c.memoryBudget | float64) (include "watchproxy.bytes" $limit | float64) -}}
{{- fail (printf "config.memoryBudget: %v is more than resources.limits.memory, %v: leave it out, and it follows that limit" $c.memoryBudget $limit) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Checks of views. The proxy checks the paths of their fields. */}}
{{- define "watchproxy.validateViews" -}}
{{- $seen := list -}}
{{- range .views -}}
{{- if has .name $seen -}}
{{- fail (printf "config.views: %s is there twice" .name) -}}
{{- end -}}
{{- $seen = append $seen .name -}}
{{- if and .fields .drop -}}
{{- fail (printf "config.views: %s must not have both fields and drop" .name) -}}
{{- end -}}
{{- if not (or .fields .drop (eq (toString .namespaces) "allowed")) -}}
{{- fail (printf "config.views: %s needs the fields to keep in fields, fields in drop, or namespaces: allowed" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Checks of durations and amounts of memory. If orZero is true, 0 is allowed too. */}}
{{- define "watchproxy.validateBounds" -}}
{{- $config := . -}}
{{- range tuple
  (dict "field" "authorization.watchRecheckInterval" "unit" "seconds" "least" "1s" "orZero" true)
  (dict "field" "cache.log.maxAge" "unit" "seconds" "least" "1s")
  (dict "field" "cache.log.maxBytes" "unit" "bytes" "least" "1Mi")
  (dict "field" "cache.selfCheckInterval" "unit" "seconds" "least" "1s" "orZero" true)
  (dict "field" "memoryBudget" "unit" "bytes" "least" "64Mi" "orZero" true)
-}}
{{- $value := $config -}}
{{- range splitList "." .field -}}
{{- $value = get (default dict $value) . -}}
{{- end -}}
{{- if ne (toString $value) "" -}}
{{- $amount := printf "watchproxy.%s" .unit -}}
{{- $is := include $amount $value | float64 -}}
{{- if and (lt $is (include $amount .least | float64)) (not (and .orZero (eq $is 0.0))) -}}
{{- fail (printf "config.%s: %s is too little: at least %s%s" .field (toJson $value | trimAll "\"") .least (ternary ", or 0" "" (default false .orZero))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
