{{/* The ProxyConfiguration: config, and what the chart adds. */}}
{{- define "watchproxy.configuration" -}}
{{- include "watchproxy.validate" . -}}
{{- $c := deepCopy .Values.config -}}
{{- if ne .Values.tls.mode "none" -}}
{{- $_ := set $c "tls" (dict "certFile" "/etc/watchproxy/tls/tls.crt" "privateKeyFile" "/etc/watchproxy/tls/tls.key") -}}
{{- end -}}
{{- if ne .Values.persistence.type "none" -}}
{{- $cache := default dict $c.cache -}}
{{- $_ := set $cache "persistence" (mergeOverwrite (default dict $cache.persistence) (dict "directory" "/var/lib/watchproxy/caches")) -}}
{{- $_ := set $c "cache" $cache -}}
{{- end -}}
{{- dict "apiVersion" "watchproxy.dev/v1alpha1" "kind" "ProxyConfiguration" | mergeOverwrite $c | toYaml -}}
{{- end -}}

{{/* The port of an address; empty for a Unix socket. */}}
{{- define "watchproxy.port" -}}
{{- if not (hasPrefix "unix://" .) -}}{{ regexFind "[0-9]+$" . }}{{- end -}}
{{- end -}}

{{/* "true" for an address that nobody outside of the pod can reach. */}}
{{- define "watchproxy.private" -}}
{{- if regexMatch "^(unix://|localhost:|127\\.|\\[::1\\]:)" . -}}true{{- end -}}
{{- end -}}

{{/* "true" if clients are authenticated, by the rule of config.SetDefaults. */}}
{{- define "watchproxy.delegated" -}}
{{- $mode := dig "authentication" "mode" "" .Values.config -}}
{{- if or (eq $mode "delegated") (and (not $mode) (not (include "watchproxy.private" .Values.config.listen))) -}}true{{- end -}}
{{- end -}}

{{/* A duration as Go writes it, in whole seconds, rounded up. */}}
{{- define "watchproxy.seconds" -}}
{{- $total := 0.0 -}}
{{- range regexFindAll "[0-9.]+(h|ms|m|s|us|µs|ns)" . -1 -}}
{{- $number := regexFind "^[0-9.]+" . | float64 -}}
{{- $unit := trimPrefix (regexFind "^[0-9.]+" .) . -}}
{{- $total = addf $total (mulf $number (get (dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001 "us" 0.000001 "µs" 0.000001 "ns" 0.000000001) $unit)) -}}
{{- end -}}
{{- ceil $total | int -}}
{{- end -}}

{{/* How long a pod may take to end. */}}
{{- define "watchproxy.terminationSeconds" -}}
{{- add .Values.termination.preStopSeconds (include "watchproxy.seconds" (default "5s" .Values.config.drain)) .Values.termination.marginSeconds -}}
{{- end -}}

{{/* What the schema cannot tell: values that contradict each other. */}}
{{- define "watchproxy.validate" -}}
{{- $v := .Values -}}
{{- $private := include "watchproxy.private" $v.config.listen -}}
{{- if and $private (ne $v.kind "Sidecar") -}}
{{- fail (printf "config.listen: %s can only be reached from within the pod: listen on \":6443\", or let kind be Sidecar" $v.config.listen) -}}
{{- end -}}
{{- if and (include "watchproxy.private" $v.config.adminListen) (ne $v.kind "Sidecar") -}}
{{- fail (printf "config.adminListen: the kubelet's probes cannot reach %s: listen on \":8002\"" $v.config.adminListen) -}}
{{- end -}}
{{- range tuple "listen" "adminListen" -}}
{{- if eq (include "watchproxy.port" (get $v.config .)) "0" -}}
{{- fail (printf "config.%s: name a port, which the Service and the probes have to know" .) -}}
{{- end -}}
{{- end -}}
{{- if and (not $private) (eq $v.tls.mode "none") (not (hasKey $v.config "tls")) -}}
{{- fail (printf "tls.mode: clients of %s bring credentials, which are only taken over TLS: choose generated, certManager or secret, or name files in config.tls" $v.config.listen) -}}
{{- end -}}
{{- if and (hasKey $v.config "tls") (ne $v.tls.mode "none") -}}
{{- fail (printf "config.tls: the chart sets it for tls.mode %s: set tls.mode to none, or leave it out" $v.tls.mode) -}}
{{- end -}}
{{- if and (dig "cache" "persistence" "directory" "" $v.config) (ne $v.persistence.type "none") -}}
{{- fail (printf "config.cache.persistence.directory: the chart sets it for persistence.type %s: set persistence.type to none, or leave it out" $v.persistence.type) -}}
{{- end -}}
{{- if eq $v.persistence.type "pvc" -}}
{{- if or (ne $v.kind "Deployment") $v.autoscaling.enabled (gt (int $v.replicas) 1) -}}
{{- fail "persistence.type: no two proxies may share a claim: pvc is for a Deployment with replicas 1 and without autoscaling; emptyDir gives each pod its own" -}}
{{- end -}}
{{- if not (or $v.persistence.size $v.persistence.existingClaim) -}}
{{- fail "persistence.size: give the claim a size, twice the bytes of the cached objects, or name an existingClaim" -}}
{{- end -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (ne $v.kind "Deployment") -}}
{{- fail (printf "autoscaling.enabled: a %s is not scaled: let kind be Deployment" $v.kind) -}}
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
{{- if and $v.monitoring.podMonitor.enabled $v.monitoring.serviceMonitor.enabled -}}
{{- fail "monitoring: each pod would be scraped twice: enable podMonitor or serviceMonitor" -}}
{{- end -}}
{{- if and (eq $v.kind "Sidecar") $v.monitoring.serviceMonitor.enabled -}}
{{- fail "monitoring.serviceMonitor.enabled: there is no Service of a Sidecar: enable podMonitor, with the labels of the application's pods as its podLabels" -}}
{{- end -}}
{{- if and (eq $v.kind "Sidecar") $v.monitoring.podMonitor.enabled (not $v.monitoring.podMonitor.podLabels) -}}
{{- fail "monitoring.podMonitor.podLabels: name labels of the application's pods, which have the Sidecar in them" -}}
{{- end -}}
{{- if and (eq $v.kind "Sidecar") $v.networkPolicy.enabled -}}
{{- fail "networkPolicy.enabled: the pods of a Sidecar are the application's, and so is their policy: set it to false" -}}
{{- end -}}
{{- end -}}
